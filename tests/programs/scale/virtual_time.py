"""An event loop whose clock jumps to the next timer, so that simulated hours take seconds.

Inside `run` the process's monotonic clock is the loop's: what measures time with it measures
simulated time. Work in threads happens at once and in order, so that a run depends on nothing else
than its inputs.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")


class _NothingElse(selectors.SelectSelector):
    """Waits for nothing but timers: there is no file to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """seconds since the simulation began"""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits for something that will never happen")
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its time stands still while something can be done, and jumps when nothing can."""

    def __init__(self) -> None:
        self._clock = _NothingElse()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Done when it returns."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in simulated time that begins at 0."""
    loop = VirtualTimeLoop()
    with patch.object(time, "monotonic", loop.time), asyncio.Runner(loop_factory=lambda: loop) as r:
        return r.run(main)
