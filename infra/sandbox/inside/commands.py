"""Runs one command as a child: within its limits, with all that it started ended after it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.sandbox.inside.messages import write_all
from infra.sandbox.inside.programs import CONFINED, become
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


@dataclass(frozen=True, slots=True)
class Order:
    """One command, with `limits` as `infra.sandbox.limits.Limits` has them."""

    command: Sequence[str]
    stdin: bytes
    environment: Mapping[str, str]
    limits: Mapping[str, Any]
    owner: int
    """the descriptor that ends when the owner goes"""


class OwnerGone(Exception):
    """The owner has closed its end while a command ran; the command is ended."""


def run(place: Place, order: Order) -> tuple[dict[str, Any], bytes]:
    """How it ended, and its output followed by its errors.

    Raises OSError where the command could not be confined, and OwnerGone.
    """
    source = os.memfd_create("stdin", os.MFD_CLOEXEC)
    write_all(source, order.stdin)
    os.lseek(source, 0, os.SEEK_SET)
    outputs, errors, report = os.pipe(), os.pipe(), os.pipe()
    started, agent = time.monotonic(), os.getpid()
    child = os.fork()
    if child == 0:
        streams = (source, outputs[1], errors[1], report[1])
        become(order.command, streams, place.folder, order.environment, order.limits, agent)
    for descriptor in (source, outputs[1], errors[1], report[1]):
        os.close(descriptor)
    watch = _Watch(place, child, (outputs[0], errors[0]), order)
    try:
        ending = watch.until_it_ends()
        said = os.read(report[0], _CHUNK)
    finally:
        watch.close()
        os.close(report[0])
    if said not in (CONFINED, b""):
        raise OSError(f"the command could not be confined: {said.decode(errors='replace')}")
    out, err = (bytes(kept) for kept in watch.kept)
    answer = {
        "ending": ending,
        "exit_code": watch.exit_code,
        "cpu_seconds": watch.cpu_seconds,
        "seconds": time.monotonic() - started,
        "truncated": watch.truncated,
        "stdout": len(out),
    }
    return answer, out + err


class _Watch:
    """Reads a child's outputs until it has ended, and ends it at its limits."""

    def __init__(self, place: Place, child: int, outputs: tuple[int, int], order: Order) -> None:
        self._place, self._child, self._limits = place, child, order.limits
        self._deadline = time.monotonic() + order.limits["seconds"]
        self.kept = (bytearray(), bytearray())
        self.truncated = False
        self.exit_code: int | None = None
        self.cpu_seconds = 0.0
        self._owner, self._ended = order.owner, os.pidfd_open(child)
        self._outputs = dict(zip(outputs, self.kept, strict=True))
        self._selector = selectors.DefaultSelector()
        for descriptor in outputs:
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
        for descriptor in (self._ended, *self._outputs):
            os.close(descriptor)

    def _read(self, descriptor: int) -> bool:
        """Whether there was something to read; at its end an output is no longer watched."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(descriptor)
            del self._outputs[descriptor]
            os.close(descriptor)
            return False
        kept = self._outputs[descriptor]
        room = self._limits["output"] - len(kept)
        self.truncated = self.truncated or len(chunk) > room
        kept += chunk[: max(room, 0)]
        return True

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
