"""Settings and spec of `opd`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from engines.algorithms.spec import Algorithm
from engines.megatron.ranks.roles import ROLES
from engines.megatron.spec import Optimizer, Trainer
from engines.sglang.spec import FleetSpec
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from tasks.domain import Domain
from tasks.rl.spec import Bounds
from tasks.stage import StageSpec

STUDENT = "model"


class OpdSettings(Config):
    steps: Steps
    problems_per_step: PerStep = 64
    group_size: PerStep = 1
    """rollouts per problem; they are not compared, so more problems help more"""
    algorithm: Algorithm = Field(
        default=Algorithm(preset="opd"), json_schema_extra={"default": {"preset": "opd"}}
    )
    """`{preset: opd, ...}`: its advantage must be distillation, or your own function"""
    optimizer: Optimizer
    trainer: Trainer = Trainer()
    fleet: FleetSpec = FleetSpec()
    bounds: Bounds = Bounds()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 10
    """steps"""


class OpdSpec(StageSpec):
    """Inputs: the student as `model`, and one teacher by each domain's name."""

    kind: ClassVar[str] = "opd"
    settings: OpdSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""

    @property
    def parts(self) -> tuple[str, ...]:
        return (ROLES["policy"],)
