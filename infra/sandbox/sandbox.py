"""The contract of a sandbox: a folder and commands that reach nothing else, and their limits."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from infra.errors import InputError, TributaryError
from infra.sandbox.trees import pack_files

WORK_ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""what every command gets, with HOME and TMPDIR at its folder; nothing of ours is inherited"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    seconds: float = 5.0
    """wall clock"""
    cpu_seconds: int = 5
    memory: int = 256 << 20
    """bytes of address space of one process"""
    resident: int = 1 << 40
    """bytes of memory that all processes of a command hold together, each counted by itself: for
    programs that reserve far more addresses than they use. Looked at every 20 ms, where `processes`
    is above 1"""
    file_size: int = 16 << 20
    """bytes of one file"""
    disk: int = 16 << 20
    """bytes of all files together, each at least a block. Kept by the kernel where namespaces
    hold; elsewhere looked at every 20 ms, so what is written between two looks may exceed it"""
    open_files: int = 32
    processes: int = 1
    """that one command may have at a time, itself included. 1 also refuses sockets and other
    programs than Python; more need a kind of sandbox that hides all other processes"""
    output: int = 8192
    """bytes kept of each of output and errors; the rest is read and thrown away"""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How a run ended, e.g. `SandboxResult("ok", "42\\n", "", 0, False, 0.04)`."""

    status: Literal["ok", "error", "killed", "timeout"]
    """error: the code raised or exited with a number; killed: a limit or signal ended it"""
    stdout: str
    stderr: str
    exit_code: int | None
    truncated: bool
    seconds: float
    cpu_seconds: float = 0.0


class SandboxLost(TributaryError):
    """A sandbox is gone or does not answer: what ran in it has no result."""


class SandboxRefused(TributaryError):
    """A sandbox did not do what it was asked: no such file, no room, a path that leads outside."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a sandbox at one moment; it can be restored in any other, of any kind."""

    packed: bytes
    """as `infra.sandbox.trees.pack` writes them"""

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Snapshot:
        """Just these files, by their path in the sandbox's folder."""
        return cls(pack_files({inside(path): content for path, content in files.items()}))


class Sandbox(Protocol):
    """One sandbox. What asks it for something raises SandboxLost where it is gone."""

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """Runs `python -c CODE`, `python -m MODULE` or `python FILE` with arguments, in the
        sandbox's folder; any program where `limits.processes` is above 1.

        `limits` are the sandbox's own, or the given ones where these are lower. What the command
        started ends with it.
        """
        ...

    def write(self, path: str, content: bytes) -> None:
        """A file at a path relative to the folder. Raises SandboxRefused."""
        ...

    def read(self, path: str, most: int = 5_000_000) -> bytes:
        """Raises SandboxRefused for what is no regular file or longer than `most` bytes."""
        ...

    def snapshot(self) -> Snapshot: ...

    def restore(self, snapshot: Snapshot) -> None:
        """The folder holds the snapshot's files and nothing else."""
        ...

    def is_running(self) -> bool:
        """False once it is known to be gone; asks nobody."""
        ...

    def stop(self) -> None:
        """Ends whatever runs and removes everything; may be called twice, and by another thread."""
        ...


def inside(path: str) -> str:
    """The path in its shortest form; raises InputError unless it lies below the folder."""
    short = posixpath.normpath(path)
    if not path or "\0" in path or short.startswith(("/", "../")) or short in (".", ".."):
        raise InputError(f"{path!r} is no path of a file in a sandbox: give one below its folder.")
    return short
