"""The RL loop: producer and consumer take turns over one buffer.

    problems ─▶ Producer ─▶ RolloutBuffer ─▶ Consumer ─▶ trainer.rl_step ─▶ publish, version + 1
                   ▲                                                              │
                   └──────────────── when the buffer has room again ◀─────────────┘

Nothing is sampled while weights are trained or published, so every batch is of one version, and the
order of events is the same in every run. With `max_staleness` k the buffer is filled with k + 1
batches before the first step and with one after each publish: batches are 0, 1, ..., k, k, k, ...
versions old when they are trained (less where an update was skipped). Synchronous RL is k = 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engines.rollout.buffer import RolloutBuffer
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.producer import Producer


async def _at_once() -> None:
    """Nothing has to happen before an update."""


async def train_loop(
    producer: Producer,
    consumer: Consumer,
    buffer: RolloutBuffer,
    *,
    first: int,
    last: int,
    after_step: Callable[[StepResult], Awaitable[bool]],
    before_update: Callable[[], Awaitable[None]] = _at_once,
) -> None:
    """Run steps `first` to `last`, or until `after_step` answers True.

    What waits in the buffer at the start is what the first steps train on. `before_update` is
    awaited while a batch is ready and the trainer still as the last step left it. An error of
    either side is raised as it is.
    """
    sampled = first + buffer.waiting - 1
    for step in range(first, last + 1):
        while buffer.has_room and sampled < last:
            sampled += 1
            batch = await producer.produce(buffer, sampled)
            if buffer.max_staleness:
                # In later steps the policy is another, so that the two cannot be compared.
                batch.agreement = await consumer.agreement(batch)
            buffer.put(batch)
        await before_update()
        result = await consumer.step(step, buffer.take())
        buffer.trained(result.version)
        if await after_step(result):
            return
