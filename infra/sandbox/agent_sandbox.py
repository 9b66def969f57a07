"""A sandbox whose agent runs on this machine, whatever confines it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields

from infra.errors import InputError
from infra.sandbox.connection import Connection
from infra.sandbox.inside.programs import PYTHON
from infra.sandbox.sandbox import (
    WORK_ENVIRONMENT,
    Limits,
    SandboxLost,
    SandboxResult,
    Snapshot,
    inside,
)

START_SECONDS = 60.0
"""for an agent to be ready, on a machine that is busy"""
FILES_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""beyond a command's own limit, until its agent counts as lost"""
_MOST_PACKED = 1 << 28


class AgentSandbox:
    """Keeps the contract of `infra.sandbox.sandbox.Sandbox` through an agent's channel."""

    def __init__(
        self,
        connection: Connection,
        limits: Limits,
        *,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """`end` ends what confines the agent, once the channel is closed."""
        self._connection, self._limits, self._end = connection, limits, end
        self._busy, self._stopping = threading.Lock(), threading.Lock()
        self._stopped = False

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Raises SandboxRefused where it could not be confined, and SandboxLost."""
        self._connection.answer(seconds=seconds, most=0)

    def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        limits = within(limits or self._limits, self._limits)
        check_command(command, limits)
        request = {
            "do": "exec",
            "command": list(command),
            "environment": {**WORK_ENVIRONMENT, **(environment or {})},
            "limits": asdict(limits),
        }
        with self._busy:
            answer, output = self._connection.request(
                request, stdin, seconds=limits.seconds + GRACE_SECONDS, most=2 * limits.output
            )
        return result_of(answer, output)

    def write(self, path: str, content: bytes) -> None:
        self._files({"do": "write", "path": inside(path)}, content)

    def read(self, path: str, most: int = 5_000_000) -> bytes:
        return self._files({"do": "read", "path": inside(path), "most": most}, most=most)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._files({"do": "snapshot"}, most=_MOST_PACKED))

    def restore(self, snapshot: Snapshot) -> None:
        self._files({"do": "restore"}, snapshot.packed)

    def listen(self, ports: Sequence[int]) -> list[int]:
        """Descriptors of sockets that listen on these ports of the sandbox's own loopback."""
        with self._busy:
            request = {"do": "listen", "ports": list(ports)}
            self._connection.send(request, seconds=FILES_SECONDS)
            descriptors = self._connection.receive_descriptors(len(ports), seconds=FILES_SECONDS)
            self._connection.answer(seconds=FILES_SECONDS, most=0)
        return descriptors

    def is_running(self) -> bool:
        return not self._stopped and self._connection.is_open()

    def stop(self) -> None:
        with self._stopping:
            if not self._stopped:
                self._stopped = True
                self._connection.close()
                self._end()

    def __enter__(self) -> AgentSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _files(self, request: dict[str, object], body: bytes = b"", *, most: int = 0) -> bytes:
        with self._busy:
            _, content = self._connection.request(
                {**request, "disk": self._limits.disk}, body, seconds=FILES_SECONDS, most=most
            )
        return content


def within(limits: Limits, most: Limits) -> Limits:
    """The lower of both, for each."""
    return Limits(
        **{f.name: min(getattr(limits, f.name), getattr(most, f.name)) for f in fields(most)}
    )


def check_command(command: Sequence[str], limits: Limits) -> None:
    if not command:
        raise InputError("`command` is empty; give a program and its arguments.")
    if command[0] != PYTHON and limits.processes == 1:
        raise InputError(
            f"`command`: {command[0]!r} is another program than `{PYTHON}`, which needs "
            "`limits.processes` above 1 and the kind `bubblewrap` or `container`."
        )


def result_of(answer: Mapping[str, object], output: bytes) -> SandboxResult:
    """Return what an agent told, as data; raises SandboxLost for what makes no sense."""
    try:
        size, ending = int(str(answer["stdout"])), answer["ending"]
        raw = answer["exit_code"]
        code = None if ending in ("timeout", "quota") else int(str(raw))
        killed = code is None or code < 0
        status = "timeout" if ending == "timeout" else "killed" if killed else "error"
        out, err = (part.decode(errors="replace") for part in (output[:size], output[size:]))
        return SandboxResult(
            status="ok" if code == 0 else status,
            stdout=out,
            stderr=err,
            exit_code=code,
            truncated=bool(answer["truncated"]),
            seconds=float(str(answer["seconds"])),
            cpu_seconds=float(str(answer["cpu_seconds"])),
        )
    except (KeyError, ValueError) as error:
        raise SandboxLost(f"a sandbox's agent answered {dict(answer)!r}") from error
