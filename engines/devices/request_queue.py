"""Who waits for units: first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class RequestQueue:
    """Requests in order of arrival: the first is tried again at every change, others wait for it.

    For one event loop.
    """

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._change = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    async def serve(self, attempt: Callable[[], _T | None], wait_s: float) -> _T:
        """The first answer of `attempt` that is not None; raises TimeoutError after `wait_s`."""
        request = object()
        self._queue.append(request)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    change = self._change  # taken first: a change during the attempt counts
                    if self._queue[0] is request and (answer := attempt()) is not None:
                        return answer
                    await change.wait()
        finally:
            self._queue.remove(request)
            self.notify_change()

    def notify_change(self) -> None:
        """Something came free: let the first request look again."""
        self._change.set()
        self._change = asyncio.Event()
