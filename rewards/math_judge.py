"""math-verify in a process of its own: warm, asked over pipes, killed when it takes too long.

math-verify bounds itself by alarm signals, which do not work outside a main thread, and an
expression such as `9^{9^{9^9}}` may take memory as well as time. So it runs behind a pipe.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from infra.errors import TributaryError

START_LIMIT = 120.0
"""seconds; importing sympy takes one, or many on a loaded machine"""
WORKER = Path(__file__).with_name("math_worker.py")


class TookTooLong(TributaryError):
    """A comparison passed its time limit, or ended its worker twice; the worker was replaced."""


class _WorkerDied(Exception):
    """It ended while it had a question."""


class MathJudge:
    """Asks one worker process, started at the first question. Safe to call concurrently."""

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        """seconds for one comparison"""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    async def equal(self, gold: str, answer: str) -> bool:
        """Whether both denote the same. Raises `TookTooLong`."""
        (found,) = await self.each_equal([(gold, answer)])
        return found

    async def each_equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Whether the two of each pair denote the same, all within the time of one comparison.
        Raises `TookTooLong`."""
        return await asyncio.to_thread(self._ask, pairs)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __reduce__(self) -> tuple[type[MathJudge], tuple[float]]:
        """A copy in another process starts its own worker."""
        return MathJudge, (self.time_limit,)

    def _ask(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        with self._lock:
            try:
                return self._asked(pairs)
            except _WorkerDied:
                pass  # by its question, or by what has nothing to do with it: a second one knows
            try:
                return self._asked(pairs)
            except _WorkerDied:
                raise TookTooLong("math-verify: the worker died twice") from None

    def _asked(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(pairs).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            self.close()
            raise _WorkerDied from error
        found: list[bool] = json.loads(self._read(process, self.time_limit))
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-I", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._read(self._process, START_LIMIT)
        return self._process

    def _read(self, process: subprocess.Popen[bytes], limit: float) -> bytes:
        """The worker's next line; it is killed where none comes in time. Raises `_WorkerDied`."""
        assert process.stdout is not None
        deadline, line = time.monotonic() + limit, b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([process.stdout], [], [], left)
            chunk = os.read(process.stdout.fileno(), 4096) if ready else b""
            if not chunk:
                self.close()
                if ready:
                    raise _WorkerDied
                raise TookTooLong(f"math-verify: no verdict within {limit:g} s")
            line += chunk
        return line
