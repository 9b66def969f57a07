"""How long to wait for what moves bytes or works in silence: bounds that follow from the work.
Calls to Ray actors are waited for all at once, with our own errors instead of Ray's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from infra.errors import EngineError, OutOfMemory, TributaryError

SLOWEST_BYTES_PER_S = 50e6
"""a network file system that others use too; weights were read here at 1 GB/s and more"""
_MUCH_SLOWER = 10
WORKING_CORES = 0.2
"""a process that uses more than this of a core, or waits for one, works; one that only waits for
questions does not"""


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
        """Note that so much work was done in so many seconds."""
        if amount > 0 and seconds > 0:
            rate = amount / seconds
            known = self._slowest_per_s
            self._slowest_per_s = rate if known is None else min(known, rate)


def folder_bytes(folder: Path) -> int:
    """Size of the files in a folder; 0 if it cannot be read from this host."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return 0


def busy_seconds(pid: int) -> float:
    """Time in which a process and those that it started used a core, or waited for one that others
    had; 0 when it is gone."""
    total = 0.0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + _waited_seconds(process.pid)
    return total


def _waited_seconds(pid: int) -> float:
    """Time in which its threads could run and had no core; 0 on kernels that do not tell."""
    total = 0
    for told in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread ended
            total += int(told.read_text().split()[1])
    return total / 1e9


class SilentWork:
    """Whether a process that does not answer works: it uses a core, or would if others left it
    one, or its log grows."""

    def __init__(self, pid: int, log: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._log, self._clock = pid, log, clock
        self._state = self._look()

    def has_moved(self) -> bool:
        """Return whether it worked since the last time that this was asked (or since the
        beginning).
        """
        (then, busy, size), self._state = self._state, self._look()
        now, busy_now, size_now = self._state
        return size_now > size or busy_now - busy > WORKING_CORES * (now - then)

    def _look(self) -> tuple[float, float, int]:
        size = self._log.stat().st_size if self._log.exists() else 0
        return self._clock(), busy_seconds(self._pid), size


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """Example: ProcessAddress("10.0.0.7", 4711, "/tmp/ray/.../worker-4711.err")"""

    host: str
    pid: int
    log: str
    """file with the process's stderr on that host; empty where it has none"""


def address_of_this_actor() -> ProcessAddress:
    """Host, pid and log file of the calling Ray actor."""
    import ray.util

    try:
        log = os.readlink("/proc/self/fd/2")  # Ray points stderr at the worker's own file
    except OSError:
        log = ""
    return ProcessAddress(ray.util.get_node_ip_address(), os.getpid(), log if "/" in log else "")


_GRACE_S = 1.0


async def answers(
    calls: Sequence[Any], timeout_s: float, what: str, places: Sequence[ProcessAddress]
) -> list[Any]:
    """The answers of `calls` (object refs), in order; `places[i]` is where call i runs.

    Raises the error of ours that a call raised, else EngineError saying which rank, where and
    with which log. When one rank fails the others often hang in a collective, so the first
    failure ends the wait, after a moment in which another rank may tell the real reason.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        done, pending = await asyncio.wait(
            tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        failed = [task for task in done if task.exception() is not None]
        if not failed and not pending:
            return [task.result() for task in tasks]
        if failed and pending:
            await asyncio.wait(pending, timeout=_GRACE_S)
    finally:
        for task in tasks:
            task.cancel()
    errors = {
        rank: translated(error, what, rank, places)
        for rank, task in enumerate(tasks)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None
    }
    if not errors:
        late = [rank for rank, task in enumerate(tasks) if task in pending]
        raise EngineError(
            f"{what}: no answer within {timeout_s:.0f} s from {_where(late[0], places)}"
        )
    told_on_purpose = [e for e in errors.values() if type(e) is not EngineError]
    raise (told_on_purpose or list(errors.values()))[0]


def translated(
    error: BaseException, what: str, rank: int, places: Sequence[ProcessAddress]
) -> TributaryError:
    """Return what a Ray call raised as one of our errors: our own is unwrapped, others say
    where."""
    from ray.exceptions import OutOfMemoryError, RayTaskError

    cause = error.cause if isinstance(error, RayTaskError) else error
    if rank >= len(places) and isinstance(cause, TributaryError):
        return cause
    # Of a rank that was killed by whomever Ray says that it may have been for memory.
    by_monitor = isinstance(cause, OutOfMemoryError) or "running low on memory" in str(cause)
    if isinstance(cause, OutOfMemory) or by_monitor:
        text = next(iter(str(cause).strip().splitlines()), "no message")
        told = OutOfMemory(f"{what} on {_where(rank, places)}: {text}", "trainer")
        told.__cause__ = error
        return told
    if isinstance(cause, TributaryError) and type(cause) is not EngineError:
        return cause
    named = "" if isinstance(cause, EngineError) else f"{type(cause).__name__}: "
    text = str(cause).strip() or "no message"
    wrapped = EngineError(f"{what} on {_where(rank, places)}: {named}{text.splitlines()[0]}")
    wrapped.__cause__ = error
    return wrapped


def _where(rank: int, places: Sequence[ProcessAddress]) -> str:
    if rank >= len(places):
        return "the owner of devices"
    place = places[rank]
    return f"rank {rank} ({place.host}, pid {place.pid}, log {place.log or 'unknown'})"
