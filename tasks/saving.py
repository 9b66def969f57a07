"""Checkpoints written during the next steps: what stops a training loop, and what does not.

    begin: state.json ──▶ the ranks copy ──▶ write into scratch ──▶ checksums, store: visible
                                             (ranks on other hosts: into the store)
           │              │                └ `wait_for_snapshot` ends: the next update may begin
           └ the loop goes on

Only one checkpoint is being written at a time: the next `begin` and the end of the block wait for
it. An error while writing ends the stage: `wait_for_snapshot` (before each update), `begin` and the
end of the block raise it, and an error of the loop in the same time is only its context.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from infra.processes.memory import give_back_freed_memory
from infra.timeline import CHECKPOINTS, TRAINER, span
from tasks.stage import Checkpoints, StageContext

Written = Callable[[], Awaitable[object]]
"""Returns when all of a step's state is in the folder"""
Snapshot = Callable[[Path], Coroutine[Any, Any, Written]]
"""Writes one step's state into a folder. State that the next step changes is written before it
returns; state that changes only with the next update is copied by the awaitable it returns, which
then tells how to wait for the rest"""


class Saving:
    """The checkpoints of one training loop. `blocked` is called with the seconds it was stopped."""

    def __init__(self, context: StageContext, blocked: Callable[[float], None]) -> None:
        self._checkpoints: Checkpoints = context.checkpoints
        self._scratch = context.scratch
        self._blocked = blocked
        self._snapshot: asyncio.Task[Written] | None = None
        self._save: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._over()

    async def begin(
        self, step: int, score: float, snapshot: Snapshot, rollouts_from: int = 0
    ) -> None:
        """Start a checkpoint of this step, once the one before it is visible.

        `rollouts_from`: the first ticket whose journalled rollouts it still needs.
        """
        with self._timed():
            await self._over()
            folder = self._scratch / f"checkpoint-{step}"
            shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed in here
            folder.mkdir(parents=True)
            self._snapshot = asyncio.create_task(snapshot(folder))
            begin = partial(self._checkpoints.begin, step, folder)
            save = partial(self._checkpoints.save, step, folder, score, rollouts_from)
            self._save = asyncio.create_task(_after(self._snapshot, begin, save, step))

    async def wait_for_snapshot(self) -> None:
        """Returns when nothing on its way needs the ranks as they are. Raises a save's error."""
        if self._snapshot is None or self._save is None:
            return
        with self._timed():
            await asyncio.shield(self._snapshot)
        if self._save.done():
            await self._over()

    async def _over(self) -> None:
        """Nothing is on its way any more. A stage that is cancelled meanwhile leaves it be."""
        if self._save is not None:
            await asyncio.shield(self._save)
        self._snapshot = self._save = None

    @contextmanager
    def _timed(self) -> Generator[None]:
        began = time.monotonic()
        try:
            with span(TRAINER, "checkpoint"):
                yield
        finally:
            self._blocked(time.monotonic() - began)


async def _after(
    snapshot: asyncio.Task[Written], begin: Callable[[], None], save: Callable[[], None], step: int
) -> None:
    with span(CHECKPOINTS, f"step {step}"):
        written = await snapshot
        await asyncio.to_thread(begin)
        await written()
        await asyncio.to_thread(save)
        await asyncio.to_thread(give_back_freed_memory)
