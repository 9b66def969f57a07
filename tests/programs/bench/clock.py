"""Wall and CPU time of a piece of work."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds; `cpu` is summed over this process and all that descend from it."""

    wall: float
    cpu: float


class Clock:
    """Runs from when it is made; reading it costs nothing of what it measures."""

    def __init__(self) -> None:
        self._cpu = _cpu_seconds()
        self._wall = time.perf_counter()

    def spent(self) -> Spent:
        wall = time.perf_counter() - self._wall
        return Spent(wall, _cpu_seconds() - self._cpu)


def timed(work: Callable[[], object]) -> Spent:
    clock = Clock()
    work()
    return clock.spent()


def _cpu_seconds() -> float:
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
    return total


def median_ratio(reference: Sequence[Spent], ours: Sequence[Spent]) -> Spent:
    """Median over neighbours in time of reference seconds / our seconds, for the same work: 1 is
    equal, more is faster than the reference."""
    pairs = list(zip(reference, ours, strict=True))
    return Spent(
        statistics.median(r.wall / o.wall for r, o in pairs),
        statistics.median(r.cpu / o.cpu for r, o in pairs),
    )
