"""RolloutBuffer: what keeps the producer at most `max_staleness` policy versions ahead.

    producer:  admit() ──▶ collect ──▶ put(batch)        waits in admit() for the consumer
    consumer:  take() ──▶ train, publish ──▶ trained()   waits in take() for the producer

A batch is *in flight* from `admit` to `trained`. At most `max_staleness` batches may be in flight
when another is admitted; so with 0 the two take turns, and with k a batch is trained at most k
publishes after its sampling began.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from engines.rollout.source import Cursor
from engines.types import Group


@dataclass(slots=True)
class StepBatch:
    """What one training step is made of."""

    version: int
    """policy version when sampling began"""
    groups: list[Group]
    """groups with signal, in problem order, at most as many as a step trains on"""
    rolled: list[Group]
    """every group sampled for this step, in problem order"""
    wanted: int
    """groups the step asked for"""
    reused: int
    """of `groups`, those sampled for an earlier step"""
    dropped: int
    """groups with signal that no step could use: surplus, or stale"""
    rounds: int
    """rounds of generation"""
    seconds: float
    """wall time of generation and judging"""
    cursor: Cursor
    """where the problem source stood after it"""
    recovered: int = 0
    """of the rollouts, those that an earlier attempt had finished"""


class RolloutBuffer:
    """Bounded hand-over between one producer and one consumer of the same event loop."""

    def __init__(self, *, max_staleness: int, version: int) -> None:
        self._max_staleness = max_staleness
        self._version = version
        self._in_flight = 0
        self._ready: deque[StepBatch] = deque()
        self._surplus: list[Group] = []
        self._changed = asyncio.Condition()

    async def admit(self) -> tuple[int, list[Group], int]:
        """Wait for leave to sample a batch. -> policy version, reusable surplus, stale dropped.

        Surplus is reusable if it will not be too stale even when every batch in flight updates.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._in_flight <= self._max_staleness)
            trained_at = self._version + self._in_flight
            fresh = [g for g in self._surplus if self._is_fresh(g, trained_at)]
            stale = len(self._surplus) - len(fresh)
            self._surplus = []
            self._in_flight += 1
            return self._version, fresh, stale

    def keep_surplus(self, groups: list[Group]) -> int:
        """Offer unused groups to the next batch. -> how many cannot be kept (all when synchronous:
        the next step's policy is another one)."""
        if self._max_staleness == 0:
            return len(groups)
        self._surplus += groups
        return 0

    async def put(self, batch: StepBatch) -> None:
        async with self._changed:
            self._ready.append(batch)
            self._changed.notify_all()

    async def take(self) -> StepBatch:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._ready))
            return self._ready.popleft()

    async def trained(self, version: int) -> None:
        """The consumer is done with the batch it took; the fleet now serves `version`."""
        async with self._changed:
            self._version = version
            self._in_flight -= 1
            self._changed.notify_all()

    def _is_fresh(self, group: Group, trained_at: int) -> bool:
        oldest = min(s.oldest_version for s in group.samples)
        return trained_at - oldest <= self._max_staleness
