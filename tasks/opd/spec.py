"""Settings and spec of `opd`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

from pydantic import Field

from engines.algorithms.spec import Algorithm
from engines.megatron.spec import Optimizer, Role
from engines.types import Split
from infra.config import PerStep
from infra.errors import InputError
from tasks.domain import Domain
from tasks.path_context import Place
from tasks.policy import PolicySettings
from tasks.stage import StageSpec

STUDENT = "model"


class OpdSettings(PolicySettings):
    problems_per_step: PerStep = 64
    group_size: PerStep = 1
    """rollouts per problem; they are not compared, so more problems help more"""
    algorithm: Algorithm = Field(
        default=Algorithm(preset="opd"), json_schema_extra={"default": {"preset": "opd"}}
    )
    """`{preset: opd, ...}`: its advantage must be distillation, or your own function"""


class OpdSpec(StageSpec):
    """Inputs: the student as `model`, and one teacher by each domain's name."""

    kind: ClassVar[str] = "opd"
    makes = "model"
    settings: OpdSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""

    @classmethod
    def in_path(cls, settings: OpdSettings, place: Place) -> tuple[Self, dict[str, str]]:
        if not place.experts:
            raise InputError("it has no teachers: only `unified.path` has the experts' models")
        spec = cls(seed=place.seed, settings=settings, domains=place.with_problems())
        inputs = {STUDENT: place.model, **place.experts}
        return spec, inputs | place.admitted_problems("rl")

    @property
    def optimizers(self) -> Iterator[tuple[str, Optimizer, int]]:
        updates = self.settings.steps * self.settings.algorithm.mini_batches
        yield "optimizer", self.settings.optimizer, updates

    @property
    def drawn(self) -> Mapping[Split, int]:
        return self.settings.drawn

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy",)

    @property
    def sampled_domains(self) -> Sequence[Domain]:
        return self.domains

    @property
    def policy(self) -> PolicySettings:
        return self.settings

    @property
    def has_teachers(self) -> bool:
        return True
