"""Run several awaitables at once; all of them are over before an error is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

A = TypeVar("A")


async def all_or_first_error(work: Sequence[Coroutine[Any, Any, A]]) -> list[A]:
    """The results in order; or the first error in that order, once every one has ended."""
    made = await asyncio.gather(*work, return_exceptions=True)
    results: list[A] = []
    for each in made:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results
