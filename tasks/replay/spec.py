"""Spec of `replay`."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from engines.megatron.spec import Role, TrainerSettings
from infra.errors import InputError
from tasks.rl.spec import RlSettings
from tasks.stage import StageSpec

ROLLOUTS = "rollouts"
"""the input whose training is repeated"""


class ReplaySpec(StageSpec):
    """A finished stage trained again on the rollouts that it kept, without servers.

    Inputs: those of the stage, and its own artifact as `rollouts`.
    """

    kind: ClassVar[str] = "replay"
    settings: RlSettings
    """of the stage"""
    teachers: list[str] = Field(default_factory=list)
    """domains whose teachers score the tokens, each an input by that name"""

    @classmethod
    def of(cls, stage: StageSpec) -> Self:
        """Raises InputError for a stage that keeps no rollouts."""
        if stage.policy is None or stage.fleet is None:
            raise InputError(f"a stage of kind {stage.kind} is not trained on its own rollouts")
        if not stage.policy.keep_rollouts:
            raise InputError(
                "it has not kept its rollouts; set `keep_rollouts: true` in its settings before it"
                " runs"
            )
        if stage.served_teachers:
            raise InputError("its teachers are served, and what they said is not kept")
        shared = stage.policy.model_dump(include=set(RlSettings.model_fields))
        settings = RlSettings.model_validate(shared)
        names = [domain.name for domain in stage.sampled_domains] if stage.has_teachers else []
        return cls(seed=stage.seed, settings=settings, teachers=names)

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "critic") if self.settings.critic_role else ("policy",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer
