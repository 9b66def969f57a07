"""Settings and spec of `rl`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from engines.algorithms.combinations import stale_doubts
from engines.algorithms.spec import Algorithm
from engines.megatron.ranks.roles import Role
from engines.megatron.spec import CriticSettings, Optimizer, TrainerSettings
from engines.sglang.spec import FleetSpec
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from tasks.domain import Domain
from tasks.stage import StageSpec


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


class RlSettings(PolicySettings):
    oversample: float = Field(default=1.5, ge=1)
    """problems drawn divided by problems still needed, in each round of generation. No effect with
    an advantage that does not compare rewards within a group: every group is kept"""
    refill_rounds: int = Field(default=1, ge=0)
    """largest number of further rounds in a step; they replace groups with equal rewards"""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """policy versions between sampling and training; 0 is synchronous. With k, k + 1 batches are
    sampled before the first step and one after each publish, in turns with training: batches are
    exactly 0, 1, ..., k, k, k, ... versions old (less old only after a skipped update)"""
    critic: CriticSettings | None = None
    """settings of the critic, for advantage gae (presets ppo, sao); None: its defaults"""

    @property
    def most_problems(self) -> int:
        """No stage draws more problems than this."""
        a_round = math.ceil(self.problems_per_step * self.oversample)
        return self.steps * (1 + self.refill_rounds) * a_round

    @property
    def critic_role(self) -> CriticSettings | None:
        """What its critic is trained with; None if its algorithm has none."""
        return (self.critic or CriticSettings()) if self.algorithm.has_critic else None


class RlSpec(StageSpec):
    """Input: `model`."""

    kind: ClassVar[str] = "rl"
    settings: RlSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later round takes problems that none had"""

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        return ("policy", "critic") if self.settings.algorithm.has_critic else ("policy",)

    @property
    def trainer(self) -> TrainerSettings:
        return self.settings.trainer

    @property
    def fleet(self) -> FleetSpec:
        return self.settings.fleet

    @property
    def sampled_domains(self) -> Sequence[Domain]:
        return self.domains

    @property
    def policy(self) -> PolicySettings:
        return self.settings

    def problems(self) -> Iterator[str]:
        settings = self.settings
        role = settings.critic_role
        if role is None and settings.critic is not None:
            yield (
                f"critic: nothing uses it, as advantage {settings.algorithm.advantage.kind} has"
                " none; leave it out, or choose `algorithm: {preset: ppo}`"
            )
        if role is not None and role.warmup_steps >= settings.steps:
            yield (
                f"critic.warmup_steps: {role.warmup_steps} of {settings.steps} steps leave none to"
                " the policy; lower it"
            )

    def cautions(self) -> Iterator[str]:
        if self.settings.max_staleness:
            yield from (f"algorithm.{doubt}" for doubt in stale_doubts(self.settings.algorithm))
