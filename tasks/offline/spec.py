"""Settings and spec of `offline`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt

from engines.algorithms.combinations import stale_doubts
from engines.algorithms.spec import Algorithm
from engines.megatron.spec import CriticSettings, Optimizer, Role, TrainerSettings
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from infra.errors import InputError
from tasks.path_context import Place
from tasks.rl.spec import RlSettings, critic_problems
from tasks.stage import StageSpec

ROLLOUTS = "rollouts"
"""the input that `rollout` made"""


class OfflineSettings(Config):
    steps: Steps
    """optimizer passes; after the last group the first one comes again"""
    problems_per_step: PerStep = 32
    algorithm: Algorithm = Field(default=Algorithm(), json_schema_extra={"default": {}})
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    critic: CriticSettings | None = None
    """settings of the critic, for an advantage that has one; None: its defaults"""
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 10
    """steps"""


class OfflineSpec(StageSpec):
    """Inputs: `model`, and the `rollouts` that were sampled from it."""

    kind: ClassVar[str] = "offline"
    makes = "model"
    settings: OfflineSettings
    group_size: int = Field(default=0, ge=0)
    """rollouts of each problem that was sampled; 0: not known"""

    @classmethod
    def in_path(cls, settings: OfflineSettings, place: Place) -> tuple[Self, dict[str, str]]:
        if not place.rollouts:
            raise InputError("it has no rollouts to train on; put `rollout` before it")
        spec = cls(seed=place.seed, settings=settings, group_size=place.group_size)
        return spec, {"model": place.model, ROLLOUTS: place.rollouts}

    @property
    def policy(self) -> RlSettings:
        """Return the settings as `rl` has them, which samples by itself."""
        settings = RlSettings(**dict(self.settings))
        sampled = {"group_size": self.group_size} if self.group_size else {}
        return settings.model_copy(update=sampled)

    @property
    def fleet(self) -> None:
        return None

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        yield from self.policy.optimizers

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "critic") if self.policy.critic_role else ("policy",)

    def problems(self) -> Iterator[str]:
        if "teachers" in self.settings.algorithm.needs:
            yield "algorithm.advantage: it needs teachers, which `offline` has not; use `opd`"
        if self.settings.algorithm.routing_replay == "engine":
            yield "algorithm.routing_replay: saved rollouts have no experts; set it to trainer"
        if self.settings.algorithm.keep is not None:
            yield "algorithm.keep: saved rollouts were sampled from all tokens; leave it out"
        yield from critic_problems(self.policy)

    def cautions(self) -> Iterator[str]:
        if self.settings.steps > 1:
            yield from (f"algorithm.{doubt}" for doubt in stale_doubts(self.settings.algorithm))
