"""Sandboxes that are started before they are needed, each used once.

A sandbox that served one use is stopped, so nothing passes from one to the next. What stops them
when their owner is killed is their kind's affair: they end with it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from infra.errors import TributaryError
from infra.sandbox.sandbox import Sandbox

_TIRED_SECONDS = 1.0
"""without a try after one that failed: its reason comes from the next use"""


class PoolBusy(TributaryError):
    """All sandboxes of a pool were in use for as long as their caller would wait."""


class Pool:
    """Up to `most` sandboxes in use, and up to `warm` that wait."""

    def __init__(self, start: Callable[[], Sandbox], *, warm: int, most: int) -> None:
        """`start` gives a sandbox that is ready; it is called from any thread."""
        self._start, self._warm = start, warm
        self._room = threading.BoundedSemaphore(most)
        self._waiting: deque[Sandbox] = deque()
        self._changed = threading.Condition()
        self._filler: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def taken(self, seconds: float = 600.0) -> Generator[Sandbox]:
        """A fresh sandbox for one use. Raises PoolBusy, and what `start` raises."""
        if not self._room.acquire(timeout=seconds):
            raise PoolBusy(f"no sandbox was free within {seconds:.0f} s; allow more at once.")
        try:
            sandbox = self._warm_one() or self._start()
            try:
                yield sandbox
            finally:
                sandbox.stop()
        finally:
            self._room.release()

    def fill(self, seconds: float = 60.0) -> None:
        """Waits until as many wait as may; for measurements and tests."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._keep_filling()
            while len(self._waiting) < self._warm:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise PoolBusy(f"the pool was not full within {seconds:.0f} s")

    def close(self) -> None:
        """Stops those that wait; those in use end with their use."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for sandbox in waiting:
            sandbox.stop()
        if self._filler is not None:
            self._filler.join()

    def _warm_one(self) -> Sandbox | None:
        with self._changed:
            self._keep_filling()
            while self._waiting:
                sandbox = self._waiting.popleft()
                self._changed.notify_all()
                if sandbox.is_running():
                    return sandbox
                sandbox.stop()
        return None

    def _keep_filling(self) -> None:
        """Called with the lock held."""
        if self._filler is None and self._warm and not self._closed:
            self._filler = threading.Thread(target=self._fill, name="sandboxes", daemon=True)
            self._filler.start()

    def _fill(self) -> None:
        while True:
            with self._changed:
                while len(self._waiting) >= self._warm and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            try:
                sandbox = self._start()
            except TributaryError:
                time.sleep(_TIRED_SECONDS)
                continue
            with self._changed:
                if not self._closed:
                    self._waiting.append(sandbox)
                    self._changed.notify_all()
                    continue
            sandbox.stop()
