"""Run two awaitables at once; if one fails, the other is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def run_both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both at once; when one fails the other is cancelled and awaited, then the error is raised."""
    one, two = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(one, two)
    except BaseException:
        one.cancel()
        two.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        raise
