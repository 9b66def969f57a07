"""How long to wait for what moves bytes or works in silence: bounds that follow from the work."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

SLOWEST_BYTES_PER_S = 50e6
"""a network file system that others use too; weights were read here at 1 GB/s and more"""
_MUCH_SLOWER = 10
WORKING_CORES = 0.2
"""a process that uses more than this of a core works; one that only waits for questions does not"""


def transfer_bound_s(num_bytes: int, floor_s: float) -> float:
    """Seconds that reading or writing so much may take, and what comes with it (`floor_s`)."""
    return floor_s + num_bytes / SLOWEST_BYTES_PER_S


class WorkRate:
    """How long an amount of work may take, from how fast earlier work was done."""

    def __init__(self, *, floor_s: float, assumed_per_s: float) -> None:
        """`assumed_per_s`: slower than anything that was seen; until something is measured."""
        self._floor_s = floor_s
        self._slowest_per_s: float | None = None
        self._assumed_per_s = assumed_per_s

    def bound_s(self, amount: float) -> float:
        """Seconds after which that much work hangs: it takes ten times as long as ever."""
        if self._slowest_per_s is None:
            return self._floor_s + amount / self._assumed_per_s
        return self._floor_s + _MUCH_SLOWER * amount / self._slowest_per_s

    def took(self, amount: float, seconds: float) -> None:
        """So much work was done in so many seconds."""
        if amount > 0 and seconds > 0:
            rate = amount / seconds
            known = self._slowest_per_s
            self._slowest_per_s = rate if known is None else min(known, rate)


def folder_bytes(folder: Path) -> int:
    """Size of the files in a folder; 0 if it cannot be read from this host."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those that it started; 0 when it is gone."""
    total = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
    return total


class SilentWork:
    """Whether a process that does not answer works: it uses a core, or its log grows."""

    def __init__(self, pid: int, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._log, self._clock = pid, log, clock
        self._state = self._look()

    def has_moved(self) -> bool:
        """Whether it worked since the last time that this was asked (or since the beginning)."""
        (then, cpu, size), self._state = self._state, self._look()
        now, cpu_now, size_now = self._state
        return size_now > size or cpu_now - cpu > WORKING_CORES * (now - then)

    def _look(self) -> tuple[float, float, int]:
        size = self._log.stat().st_size if self._log.exists() else 0
        return self._clock(), cpu_seconds(self._pid), size
