"""The contract of a sandbox: a folder and commands that can reach nothing else.

All kinds keep it, and one test (`tests/integration/infra/test_sandbox_contract.py`) runs against
each. Calls block; one sandbox serves one caller at a time.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.errors import InputError, TributaryError
from infra.sandbox.limits import Limits, SandboxResult
from infra.sandbox.trees import pack_files

WORK_ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""what every command gets, with HOME and TMPDIR at its folder; nothing of ours is inherited"""


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
