"""The RL loop: sampling and training take turns.

    tickets ─▶ Producer ─▶ GroupBuffer ─▶ take, logged ─▶ Consumer: train, publish version + 1
                  ▲                                              │
                  └─────── while too few groups wait ◀───────────┘

Nothing is sampled while weights are trained or published, so what is sampled together is of one
version, and the order of events is the same in every run. With `max_staleness` k, groups for k + 1
steps wait before the first update and again after each: they are 0, 1, ..., k, k, k, ... versions
old when they are trained (less where an update was skipped). Synchronous RL is k = 0.

Only this file says that the two take turns: tickets, journal, buffer and take log know nothing of
it. Running both at once is another `run`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.producer import Producer, Sampled
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.take_log import Take, TakeLog


async def _at_once() -> None:
    """Nothing has to happen before an update."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The parts of an RL stage, and the order in which they work."""

    producer: Producer
    buffer: GroupBuffer
    takes: TakeLog
    consumer: Consumer
    policy: PolicyVersion

    async def run(
        self,
        *,
        first: int,
        last: int,
        after_step: Callable[[StepResult], Awaitable[bool]],
        before_update: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """Run steps `first` to `last`, or until `after_step` answers True.

        What waits in the buffer at the start is what the first steps train on. `before_update` is
        awaited while groups wait and the trainer is still as the last step left it. An error of
        either side is raised as it is.
        """
        for step in range(first, last + 1):
            sampled = await self._sample(last + 1 - step)
            await before_update()
            result = await self._update(step, sampled)
            if await after_step(result):
                return

    async def _sample(self, steps_left: int) -> Sampled:
        """Fill the buffer for the next update."""
        sampled = await fill(self.producer, self.policy.version, steps_left)
        if self.buffer.max_staleness:
            # In later steps the policy is another, so that the two cannot be compared.
            sampled.agreement = await self.consumer.agreement(sampled.kept)
        return sampled

    async def _update(self, step: int, sampled: Sampled) -> StepResult:
        """Take the step's groups, say so, and train on them."""
        recorded = self.takes.of(step)
        groups = self.buffer.take(recorded.tickets if recorded else None)
        tickets = tuple(group.ticket for group in groups)
        await self.takes.write(Take(step, self.policy.version, tickets))
        result = await self.consumer.step(step, groups, sampled)
        result.dropped = self.buffer.drop_stale()
        result.waiting = len(self.buffer)
        result.next_ticket = self.producer.source.next
        return result


async def fill(producer: Producer, version: int, steps_left: int = 1) -> Sampled:
    """Roll waves until enough groups wait. `version`: the policy's. Raises EngineError."""
    began, recovered = time.monotonic(), producer.recovered
    sampled = Sampled(version)
    while tickets := producer.admit(steps_left, sampled.waves):
        groups = await asyncio.gather(*[producer.roll(ticket) for ticket in tickets])
        sampled.kept += [group for group in groups if producer.emit(group)]
        sampled.groups += groups
        sampled.waves += 1
    await producer.flush()
    sampled.seconds = time.monotonic() - began
    sampled.recovered = producer.recovered - recovered
    return sampled
