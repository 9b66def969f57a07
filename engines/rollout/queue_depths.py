"""Has a timeline told, many times a second, how much waits and how much is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

from infra.timeline import Timeline

_EVERY_S = 0.05


@asynccontextmanager
async def counting(
    timeline: Timeline, depths: Callable[[], Mapping[str, float]]
) -> AsyncGenerator[None]:
    """While the block runs, and once more at its end."""
    task = asyncio.create_task(_count(timeline, depths), name="queue depths")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        timeline.count(depths())


async def _count(timeline: Timeline, depths: Callable[[], Mapping[str, float]]) -> None:
    while True:
        timeline.count(depths())
        await asyncio.sleep(_EVERY_S)
