"""A simulated trainer: a step takes a fixed time for each token, and a publish a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engines.step_inputs import StepInputs, TrainedStep, Values
from engines.types import Sample
from engines.weights.transport import PublishReport
from tests.programs.scale.fleet import SimulatedFleet
from tests.programs.scale.workload import TOKENS_EACH

FORWARD_SHARE = 1 / 3
"""of a step's time; the rest is the backward pass"""
PUBLISH_S = 2.0
"""of a publish: servers pause for it"""


@dataclass
class SimulatedTrainer:
    """Its clock is the event loop's."""

    tokens_per_s: float
    fleet: SimulatedFleet
    trained: list[int] = field(default_factory=list[int])
    """tokens of each step"""

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        tokens = num_tokens(inputs.samples)
        await asyncio.sleep(tokens / self.tokens_per_s)
        self.trained.append(tokens)
        return TrainedStep({"tokens": float(tokens)})

    async def agreement(self, inputs: StepInputs) -> dict[str, float]:
        tokens = num_tokens(inputs.samples)
        await asyncio.sleep(FORWARD_SHARE * tokens / self.tokens_per_s)
        return {}

    async def token_rewards(self, inputs: StepInputs) -> Values:
        return np.zeros(sum(len(s.tokens) for s in inputs.samples), np.float32)

    async def publish(self, endpoints: Sequence[str], version: int) -> PublishReport:
        servers = self.fleet.reachable(endpoints)
        for server in servers:
            server.pause()
        await asyncio.sleep(PUBLISH_S)
        for server in servers:
            server.resume(version)
        return PublishReport(version, "simulated", 0, len(servers), PUBLISH_S, PUBLISH_S)


def num_tokens(samples: Sequence[Sample]) -> int:
    """That the policy wrote, in tokens of a model."""
    return TOKENS_EACH * sum(sample.num_trained_tokens for sample in samples)
