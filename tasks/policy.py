"""Settings of a policy that learns from its own samples: what `rl` and `opd` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from engines.algorithms.spec import Algorithm
from engines.megatron.spec import Optimizer, TrainerSettings
from engines.sglang.spec import FleetSpec
from engines.types import Split
from infra.config import RESULT_NEUTRAL, Config, Count, PerStep, Steps


class Bounds(Config):
    """When to stop early, with a reason."""

    solved_reward: float = Field(default=0.97, ge=0)
    """if the mean outcome of three steps in a row reaches this, the stage ends as solved"""
    min_outcome: float = Field(default=0.0, ge=0, le=1)
    """if the mean outcome of five steps falls below this, the run stops (collapse)"""
    max_entropy: float | None = None
    """if the mean entropy of five steps (nats per token) is above this, the run stops (collapse)"""
    max_failed_share: float = Field(default=0.2, ge=0, le=1)
    """if the share of failed samples in a step is above this, or that of failed verdicts since the
    stage began, the run stops. 1: never"""


class Evaluation(Config):
    """Scores of the policy on held-out problems while it trains; nothing is trained on them. They
    are outcomes: of other rewards only reward models are asked, to compare both."""

    every: PositiveInt = 10
    """steps from one evaluation to the next; there is one before the first step and one after the
    last step too"""
    problems: Count = 64
    """held-out problems per domain: the first ones of those that the stage `evaluate` draws"""
    samples: PerStep = 1
    """samples per problem, at temperature 1"""
    timeout_s: PositiveFloat = 300.0
    """time limit in seconds of one evaluation, which the next publish waits for; after it the
    rollouts that are finished are scored"""


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
    evaluate: Evaluation | None = None
    """scores on held-out problems while it trains; None: none"""
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 10
    """steps"""
    keep_rollouts: Annotated[bool, RESULT_NEUTRAL] = False
    """whether the artifact keeps what each step was trained on, for `tributary replay`"""

    @property
    def group_sizes(self) -> Sequence[int]:
        """Return how many rollouts a problem has: one number, or one for each part of the stage."""
        return [self.group_size]

    @property
    def critic_trainer(self) -> TrainerSettings | None:
        """Return how the critic beside it trains; None if there is none."""
        return None

    @property
    def served(self) -> FleetSpec:
        """Return the policy's servers, which compute as its trainer does, and say what updates
        replay."""
        fleet = self.fleet.of_trainer(self.trainer.precision)
        return fleet.with_experts() if self.algorithm.routing_replay == "engine" else fleet

    @property
    def drawn(self) -> Mapping[Split, int]:
        """Return how many problems of a domain's split it needs at once."""
        held_out: dict[Split, int] = {"heldout": self.evaluate.problems} if self.evaluate else {}
        return {"rl": self.problems_per_step, **held_out}
