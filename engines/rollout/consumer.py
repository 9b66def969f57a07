"""Consumer: trains on a batch, publishes the new weights, hands the version back.

consumes: `StepBatch`                     waits for: `buffer.take`
produces: policy version + 1, metrics     unblocked by: `buffer.put`
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from engines.algorithms.sample_rules import trains
from engines.algorithms.spec import Algorithm
from engines.rollout.buffer import RolloutBuffer, StepBatch
from engines.rollout.producer import trainable
from engines.rollout.seams import PolicyTrainer

_MIN_SHARE = 0.25
"""with fewer than this share of the wanted groups, an update would follow noise: it is skipped"""


@dataclass(slots=True)
class StepResult:
    """What one step did."""

    step: int
    version: int
    """policy version after it"""
    batch: StepBatch
    trained: dict[str, float] = field(default_factory=dict)
    """the trainer's metrics; empty when the update was skipped"""
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    publish_bytes: int = 0


class Consumer:
    """Empties the buffer, one optimizer pass and one publish a batch."""

    def __init__(
        self,
        *,
        trainer: PolicyTrainer,
        endpoints: Sequence[str],
        algorithm: Algorithm,
        version: int,
    ) -> None:
        self._trainer = trainer
        self._endpoints = endpoints
        self._algorithm = algorithm
        self._version = version

    async def run(
        self,
        buffer: RolloutBuffer,
        first: int,
        last: int,
        after_step: Callable[[StepResult], Awaitable[bool]],
    ) -> None:
        """Train steps `first` to `last`; ends early when `after_step` answers True."""
        for step in range(first, last + 1):
            result = await self.step(step, await buffer.take())
            if await after_step(result):
                return
            await buffer.trained(result.version)

    async def step(self, step: int, batch: StepBatch) -> StepResult:
        """One update and publish. Raises EngineError, AgreementError, TrainingStopped."""
        samples = [s for group in batch.groups for s in trainable(group).samples]
        too_few = len(batch.groups) < _MIN_SHARE * batch.wanted
        if too_few or not any(trains(s, self._algorithm.truncated) for s in samples):
            return StepResult(step, self._version, batch)
        began = time.monotonic()
        metrics = await self._trainer.rl_step(
            samples, self._algorithm, gate=True, version=self._version
        )
        trained = time.monotonic()
        report = await self._trainer.publish(self._endpoints, self._version + 1)
        self._version += 1
        return StepResult(
            step,
            self._version,
            batch,
            trained=metrics,
            train_seconds=trained - began,
            publish_seconds=time.monotonic() - trained,
            publish_bytes=report.bytes,
        )
