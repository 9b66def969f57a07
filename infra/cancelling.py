"""Two things that asyncio raises the same CancelledError for."""

from __future__ import annotations

import asyncio


def is_told_to_end() -> bool:
    """Whether somebody cancels the current task. Or else a CancelledError that it sees comes from
    within: of another task, for which it waits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
