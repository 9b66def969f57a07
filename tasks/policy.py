"""Settings of a policy that learns from its own samples: what `rl` and `opd` share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from engines.algorithms.spec import Algorithm
from engines.megatron.spec import Optimizer, TrainerSettings
from engines.sglang.spec import FleetSpec
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps


class Bounds(Config):
    """When to stop early, with a reason."""

    solved_reward: float = Field(default=0.97, ge=0)
    """if the mean outcome of three steps in a row reaches this, the stage ends as solved"""
    min_outcome: float = Field(default=0.0, ge=0, le=1)
    """if the mean outcome of five steps falls below this, the run stops (collapse)"""
    max_entropy: float | None = None
    """if the mean entropy of five steps (nats per token) is above this, the run stops (collapse)"""
    max_failed_share: float = Field(default=0.2, ge=0, le=1)
    """if the share of failed samples in a step is above this, the run stops"""


class PolicySettings(Config):
    """How a policy learns from what it samples itself: shared by `rl` and `opd`."""

    steps: Steps
    problems_per_step: PerStep = 32
    group_size: PerStep = 8
    """rollouts per problem"""
    algorithm: Algorithm = Field(default=Algorithm(), json_schema_extra={"default": {}})
    optimizer: Optimizer
    trainer: TrainerSettings = TrainerSettings()
    fleet: FleetSpec = FleetSpec()
    bounds: Bounds = Bounds()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 10
    """steps"""
    keep_rollouts: Annotated[bool, RESULT_NEUTRAL] = False
    """whether the artifact keeps what each step was trained on, for `tributary replay`"""
