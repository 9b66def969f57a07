"""Settings and spec of `opd`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from engines.algorithms.spec import Algorithm
from engines.megatron.ranks.roles import Role
from infra.config import PerStep
from tasks.domain import Domain
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
    settings: OpdSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""

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
