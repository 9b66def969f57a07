"""The RL loop: producer and consumer over one buffer.

    problems ─▶ Producer ─▶ RolloutBuffer ─▶ Consumer ─▶ trainer.rl_step ─▶ publish, version + 1
                   ▲                                                              │
                   └───────────────── admitted when fresh enough ◀────────────────┘

Both run all the time; the buffer alone decides how far apart they may be. Synchronous RL is
`max_staleness=0` and nothing else.
"""

from __future__ import annotations

import asyncio
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

    `before_update` is awaited while a batch is ready and the trainer still as the last step left
    it.
    The first error of either side ends both and is raised as it is.
    """
    producing = asyncio.create_task(producer.run(buffer, first, last))
    consuming = asyncio.create_task(consumer.run(buffer, first, last, after_step, before_update))
    try:
        done, _ = await asyncio.wait({producing, consuming}, return_when=asyncio.FIRST_COMPLETED)
        if consuming not in done:
            producing.result()  # raises what ended it, if it failed
        await consuming
    finally:
        for task in (producing, consuming):
            task.cancel()
        await asyncio.gather(producing, consuming, return_exceptions=True)
