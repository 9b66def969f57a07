"""Watches one command, a child: within its limits, with all that it started ended after it."""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.sandbox.inside.programs import CONFINED
from infra.sandbox.trees import used

LOOK_SECONDS = 0.02
"""between two looks at what the kernel does not bound: files, processes, memory of all"""
_BUFFER_BYTES = {"sockets:": 512 << 10, "TCP:": 4 << 20, "TCP6:": 4 << 20}
"""most of one socket: its queue counts in blocks, and TCP lets it grow"""
_CHUNK = 1 << 16
_AGENT = "1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent runs commands."""

    folder: str
    alone: bool
    """in a PID namespace that nothing else is in: every other process there may be killed"""
    watch_disk: bool
    """the kernel does not bound the folder's files"""


class Pipes:
    """A program's output, its errors, and how far it came on its way to being one."""

    def __init__(self) -> None:
        pairs = [os.pipe() for _ in range(3)]
        self.outputs, self.errors, self.report = (read for read, _ in pairs)
        self.written = [write for _, write in pairs]
        """the other ends of the three"""

    def close_written(self) -> None:
        for descriptor in self.written:
            os.close(descriptor)

    def close_read(self) -> None:
        for descriptor in (self.outputs, self.errors, self.report):
            os.close(descriptor)


class OwnerGone(Exception):
    """The owner has closed its end while a command ran; the command is ended."""


@contextlib.contextmanager
def watch(
    place: Place, child: int, pipes: Pipes, limits: Mapping[str, Any], owner: int
) -> Generator[tuple[dict[str, Any], list[memoryview]]]:
    """Learn how a child that becomes a program ended, its output and its errors, which are gone
    after.

    `owner`: the descriptor that ends when the owner goes. Raises OSError where the command could
    not be confined, and OwnerGone.
    """
    started = time.monotonic()
    watched = _Watch(place, child, pipes, limits, owner)
    try:
        ending = watched.until_it_ends()
        said = os.read(pipes.report, _CHUNK)
        if said not in (CONFINED, b""):
            why = said.decode(errors="replace")
            raise OSError(f"the command could not be confined: {why}")
        kept = [each.content() for each in watched.kept]
        answer = {
            "ending": ending,
            "exit_code": watched.exit_code,
            "cpu_seconds": watched.cpu_seconds,
            "seconds": time.monotonic() - started,
            "truncated": any(each.is_truncated for each in watched.kept),
            "stdout": len(kept[0]),
        }
        yield answer, kept
    finally:
        watched.close()


class _Kept:
    """The first bytes of an output, in memory of its own: later programs do not get it."""

    def __init__(self, most: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, most + _CHUNK, flags=private)
        self._view = memoryview(self._memory)
        self._most, self._size = most, 0
        self.is_truncated = False

    def read(self, descriptor: int) -> int:
        """Return how much there was; what is more than fits is thrown away."""
        got = os.readv(descriptor, [self._view[self._size : self._size + _CHUNK]])
        self.is_truncated = self.is_truncated or self._size + got > self._most
        self._size = min(self._size + got, self._most)
        return got

    def content(self) -> memoryview:
        return self._view[: self._size]

    def close(self) -> None:
        """The memory goes with the last view of it."""
        self._view.release()
        with contextlib.suppress(BufferError):
            self._memory.close()


class _Watch:
    """Reads a child's outputs until it has ended, and ends it at its limits."""

    def __init__(
        self, place: Place, child: int, pipes: Pipes, limits: Mapping[str, Any], owner: int
    ) -> None:
        self._place, self._child, self._limits = place, child, limits
        self._deadline = time.monotonic() + limits["seconds"]
        self.kept = (_Kept(limits["output"]), _Kept(limits["output"]))
        self.exit_code: int | None = None
        self.cpu_seconds = 0.0
        self._owner, self._ended = owner, os.pidfd_open(child)
        self._outputs = dict(zip((pipes.outputs, pipes.errors), self.kept, strict=True))
        self._selector = selectors.DefaultSelector()
        for descriptor in self._outputs:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        for descriptor in (self._ended, self._owner):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def until_it_ends(self) -> str:
        """-> closed (by itself), timeout or quota."""
        has_processes = self._limits["processes"] > 1
        pause = LOOK_SECONDS if self._place.watch_disk or has_processes else None
        ending = ""
        while not ending:
            left = self._deadline - time.monotonic()
            ready = {key.fd for key, _ in self._selector.select(max(0.0, min(left, pause or left)))}
            for descriptor in ready & self._outputs.keys():
                self._read(descriptor)
            if self._owner in ready or self._ended in ready:
                ending = "closed" if self._ended in ready else "gone"
            elif left <= 0:
                ending = "timeout"
            elif pause and self._is_over_quota():
                ending = "quota"
        self._end()
        if ending == "gone":
            raise OwnerGone
        for descriptor in list(self._outputs):
            while self._read(descriptor):
                pass
        return ending

    def close(self) -> None:
        self._selector.close()
        os.close(self._ended)
        for kept in self.kept:
            kept.close()

    def _read(self, descriptor: int) -> bool:
        """Return whether there was something to read; at its end an output is no longer watched."""
        try:
            got = self._outputs[descriptor].read(descriptor)
        except BlockingIOError:
            return False
        if not got:
            self._selector.unregister(descriptor)
            del self._outputs[descriptor]
        return bool(got)

    def _is_over_quota(self) -> bool:
        if self._place.watch_disk and used(self._place.folder) > self._limits["disk"]:
            return True
        if self._limits["processes"] == 1:
            return False
        self._bury_orphans()
        running = _processes()
        processes = self._limits["processes"]
        if len(running) > processes:
            return True
        most = min(self._limits["resident"], processes * self._limits["memory"])
        return _resident(running) + _buffers() > most

    def _bury_orphans(self) -> None:
        """Ended processes that lost their parent are the agent's, the first process."""
        with contextlib.suppress(ChildProcessError):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid != self._child:
                os.waitpid(ended.si_pid, 0)

    def _end(self) -> None:
        """Kills what is left of the command and collects it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        _, status, usage = os.wait4(self._child, 0)
        self.exit_code = os.waitstatus_to_exitcode(status)
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        if not self._place.alone:
            return
        # whatever forks while it is being killed is killed by the next round
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while True:
                os.kill(-1, signal.SIGKILL)
                os.waitpid(-1, 0)


def _processes() -> list[str]:
    """Processes of this PID namespace beside the agent, its first."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != _AGENT]


def _buffers() -> int:
    """Bytes that the sockets of this network may hold in the kernel, whoever has them open: what
    they do hold is not told. Their sizes cannot be raised (`seccomp.py`)."""
    found = 0
    for file in ("/proc/net/sockstat", "/proc/net/sockstat6"):
        with contextlib.suppress(OSError), open(file, encoding="ascii") as counts:
            for kind, _, number, *_ in map(str.split, counts):
                found += _BUFFER_BYTES.get(kind, 0) * int(number)
    return found


def _resident(processes: Sequence[str]) -> int:
    """Bytes of memory that they hold."""
    pages = 0
    for process in processes:
        with (
            contextlib.suppress(OSError),  # it has ended
            open(f"/proc/{process}/statm", encoding="ascii") as counts,
        ):
            pages += int(counts.read().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
