"""The RL loop: what samples and what trains, in turns or at the same time.

`max_staleness: 0`: sampling and training take turns, so that all data of a step are of the newest
weights, and the order of events is the same in every run.

    tickets ─▶ roll in waves ─▶ GroupBuffer ─▶ take, logged ─▶ Consumer: train, publish version + 1
                  ▲                                                    │
                  └─────────── while too few groups wait ◀─────────────┘

With a RoundSampler they take turns, too, and rollouts that are not over go on in the next step.

Above 0 a BackgroundSampler goes on sampling while the trainer trains and publishes. A step takes
the oldest tickets of those that are finished, at most `max_staleness` versions old. Which these are
depends on the clock, so the take log is what a repeated step follows.

Only this file says when what happens: tickets, journal, buffer and take log know nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.buffers import GroupBuffer
from engines.rollout.consumer import Consumer, StepResult, at_once
from engines.rollout.producer import Producer, Sampled
from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.take_log import Take, TakeLog, TrainedRollouts
from engines.rollout.round_sampler import RoundSampler
from infra.timeline import TRAINER, span

AfterStep = Callable[[StepResult], Awaitable[bool]]
BeforeUpdate = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loop:
    """The parts of an RL stage, and the order in which they work."""

    producer: Producer
    buffer: GroupBuffer
    takes: TakeLog
    consumer: Consumer
    policy: PolicyVersion
    sampler: BackgroundSampler | RoundSampler
    trained: TrainedRollouts | None = None
    """where the rollouts that are trained on are kept, if they are"""

    async def run(
        self,
        *,
        first: int,
        last: int,
        after_step: AfterStep,
        before_update: BeforeUpdate = at_once,
    ) -> None:
        """Run steps `first` to `last`, or until `after_step` answers True.

        What waits in the buffer at the start is what the first steps train on. `before_update` is
        awaited while groups wait and the trainer is still as the last step left it. An error of
        either side is raised as it is.
        """
        steps = range(first, last + 1)
        if isinstance(self.sampler, RoundSampler):
            async with self.sampler as rounds:
                await self._take_turns(steps, rounds.fill, after_step, before_update)
        elif self.buffer.max_staleness:
            await self._sample_beside(self.sampler, steps, after_step, before_update)
        else:
            await self._take_turns(
                steps, lambda _, recorded: fill(self.producer, recorded), after_step, before_update
            )

    async def _take_turns(
        self,
        steps: range,
        fill: Callable[[int, Collection[int]], Awaitable[Sampled]],
        after_step: AfterStep,
        before_update: BeforeUpdate,
    ) -> None:
        for step in steps:
            recorded = self.takes.of(step)
            with span(TRAINER, "wait", step=step):
                sampled = await fill(steps.stop - step, recorded.tickets if recorded else ())
            await before_update()
            result = await self._update(step, sampled)
            self._drop_stale(result)
            if await after_step(result):
                return

    async def _sample_beside(
        self,
        sampler: BackgroundSampler,
        steps: range,
        after_step: AfterStep,
        before_update: BeforeUpdate,
    ) -> None:
        sampler.trained = steps.start - 1
        async with sampler:
            for step in steps:
                recorded = self.takes.of(step)
                with span(TRAINER, "wait", step=step):
                    sampled = await sampler.groups_for(recorded.tickets if recorded else None)
                await before_update()
                result = await self._update(step, sampled)
                self._drop_stale(result)
                sampler.step_done()
                if await after_step(result):
                    return

    async def _update(self, step: int, sampled: Sampled) -> StepResult:
        """Take the step's groups, say so, and train on them."""
        recorded = self.takes.of(step)
        groups = self.buffer.take(recorded.tickets if recorded else None)
        tickets = tuple(group.ticket for group in groups)
        if recorded is not None and tickets != recorded.tickets:
            await self.takes.forget(step)
            self.producer.leave_earlier_attempt()
        await self.takes.write(Take(step, self.policy.version, tickets))
        if self.trained is not None:
            await self.trained.keep(step, groups)
        return await self.consumer.step(step, groups, sampled)

    def _drop_stale(self, result: StepResult) -> None:
        needed = [n for take in self.takes.from_step(result.step + 1) for n in take.tickets]
        result.dropped = self.buffer.drop_stale(needed)
        result.waiting = len(self.buffer)
        result.reused, result.buffer_fault = self.buffer.reused, self.buffer.fault


async def fill(producer: Producer, recorded: Collection[int] = ()) -> Sampled:
    """Roll waves until a step's groups wait, all of it durable. `recorded`: tickets that an earlier
    attempt trained on in this step. Raises EngineError."""
    began = time.monotonic()
    recovered, recovered_tokens = producer.recovered, producer.recovered_tokens
    sampled = Sampled()
    while count := (
        producer.admission.in_turns(len(producer.buffer), sampled.waves)
        or producer.source.left_until(recorded)
    ):
        rolled = await producer.roll_wave(count, recorded)
        for group, drop in rolled:
            producer.emit(group, drop, sampled)
            sampled.groups.append(group)
        producer.source.tell([group for group, _ in rolled])
        sampled.waves += 1
    if sampled.groups:
        dropped = sampled.filtered.total() / len(sampled.groups)
        producer.dropped_share = (producer.dropped_share + dropped) / 2
    await producer.flush()
    sampled.seconds = sampled.waited_seconds = time.monotonic() - began
    sampled.recovered = producer.recovered - recovered
    sampled.recovered_tokens = producer.recovered_tokens - recovered_tokens
    return sampled
