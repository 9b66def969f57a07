"""The host agent's handle of a process parent: starts child processes and outlives none."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from engines.devices.waiting_time import SilentWork
from infra.errors import EngineError
from infra.processes.children import end_of_log
from infra.processes.leftovers import is_over, leftovers_of, remove_leftovers
from infra.secret_references import with_secrets_of_the_store

_SILENT_S = 60.0
"""how long a parent that imports SGLang may do nothing, as far as one can see"""
_LOOK_S = 1.0
_REPLY_S = 30.0
_KILL_S = 10.0
"""how long processes that the kernel ends may take"""
_LOG = "process-parent.log"
_KILLED = -signal.SIGKILL
_NOTHING: Mapping[str, str] = {}


class ParentEnded(EngineError):
    """A process parent ended, and all its children with it."""


class ChildProcesses:
    """A running process parent. Methods may be called from any thread; each is short but
    `wait_ready`.

    Logs go to `logs`, one file a process. `close` (or the end of this process, however it ends)
    kills every child: of one whose parent ended, `exit_code` says that it was killed.
    """

    def __init__(self, logs: Path, preloaded: str = "") -> None:
        """`preloaded` names the module that `serve` runs; without one, only `run` works."""
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self._lock = threading.Lock()
        self._is_ready = False
        self._owed = 0
        """replies to requests that were sent"""
        self._started: list[int] = []
        """children of which a parent that is killed leaves files to remove"""
        self._abandoned: list[int] = []
        """children whose pid came too late for whoever wanted them"""
        with (logs / _LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engines.devices.process_parent", preloaded],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=with_secrets_of_the_store(os.environ) | {"PYTHONUNBUFFERED": "1"},
            )
        assert self._process.stdout is not None
        # Without a buffer: a line in one is nothing that `select` sees.
        self._replies = FileIO(self._process.stdout.fileno(), closefd=False)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, silent_s: float = _SILENT_S) -> None:
        """Return when servers can be forked. The wait is as long as the parent works; raises
        EngineError with the log's end when it did nothing for `silent_s` seconds."""
        with self._lock:
            self._wait_ready(silent_s)

    def serve(self, options: dict[str, Any], log: Path) -> int:
        """Let the preloaded module serve with these options; returns its pid."""
        asked = {"do": "serve", "options": options, "log": str(log), "environment": _home()}
        return self._begin(asked)

    def run(self, command: list[str], log: Path, environment: Mapping[str, str] = _NOTHING) -> int:
        """Start any other program, with `environment` beside the parent's; returns its pid."""
        asked = {"do": "run", "command": command, "log": str(log)}
        return self._begin(asked | {"environment": _home() | dict(environment)})

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code; None while the child runs."""
        try:
            return self._ask({"do": "status", "pid": pid})["exit"]
        except ParentEnded:
            return _KILLED

    def stop(self, pid: int, grace: float = 0.0) -> None:
        """End a child and all it started: SIGTERM, then SIGKILL after `grace` seconds."""
        if grace > 0:
            self._signal(pid, signal.SIGTERM)
            if self._wait_exit(pid, grace):
                return
        self._signal(pid, signal.SIGKILL)
        if not self._wait_exit(pid, 10.0):
            raise EngineError(f"process {pid} did not end within 10 s of SIGKILL")

    def close(self) -> None:
        """Kill every child, then their parent itself."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.returncode != 0:  # it was killed, and the kernel ended its children
            deadline = time.monotonic() + _KILL_S
            while not all(map(is_over, self._started)) and time.monotonic() < deadline:
                time.sleep(0.02)
            ended = [pid for pid in self._started if is_over(pid)]
            remove_leftovers(path for pid in ended for path in leftovers_of(pid))

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, asked: dict[str, Any]) -> int:
        pid = self._ask(asked)["pid"]
        self._started.append(pid)
        return pid

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ParentEnded):
            self._ask({"do": "signal", "pid": pid, "signal": int(number)})

    def _wait_exit(self, pid: int, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.exit_code(pid) is not None:
                return True
            time.sleep(0.02)
        return False

    def _wait_ready(self, silent_s: float) -> None:
        if self._is_ready:
            return
        work, moved = SilentWork(self._process.pid, self.logs / _LOG), time.monotonic()
        while not self._has_line(min(_LOOK_S, silent_s)):
            now = time.monotonic()
            moved = now if work.has_moved() else moved
            if now >= moved + silent_s:
                raise self._silent(silent_s)
        self._read_line(_REPLY_S)
        self._is_ready = True

    def _has_line(self, timeout: float) -> bool:
        """Replies are single short lines written at once, so a readable pipe holds a whole one."""
        return bool(select.select([self._replies], [], [], timeout)[0])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if not self.is_alive:
                raise self._gone()
            self._wait_ready(_SILENT_S)
            reply = self._reply_to(request)
        if "error" in reply:
            raise EngineError(
                f"the parent of engine processes could not {request['do']}: {reply['error']}"
            )
        return reply

    def _reply_to(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to this request: those to earlier requests that come too late are for
        nobody."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error
        self._owed += 1
        deadline = time.monotonic() + _REPLY_S
        while True:
            reply = self._read_line(max(deadline - time.monotonic(), 0.0))
            self._owed -= 1
            if not self._owed:
                break
            self._abandoned += [reply["pid"]] if "pid" in reply else []
        while self._abandoned:
            pid = self._abandoned.pop()
            self._reply_to({"do": "signal", "pid": pid, "signal": int(signal.SIGKILL)})
        return reply

    def _read_line(self, timeout: float) -> dict[str, Any]:
        if not self._has_line(timeout):
            raise self._silent(_REPLY_S)
        line = self._replies.readline()
        if not line:
            raise self._gone()
        return json.loads(line)

    def _silent(self, seconds: float) -> EngineError:
        return EngineError(
            f"the parent of engine processes gave no answer in {seconds:.0f} s: it hangs, or other"
            f" programs leave it no time; let less run beside it and try again; {self._advice()}"
        )

    def _gone(self) -> ParentEnded:
        return ParentEnded(f"the parent of engine processes ended; {self._advice()}")

    def _advice(self) -> str:
        path = self.logs / _LOG
        tail = log_tail(path)
        return f"the end of {path}:\n{tail}" if tail else f"its log {path} is empty"


def _home() -> dict[str, str]:
    """The home of whoever asks, whose key a server asks for: the parent may be of another."""
    return {name: value for name, value in os.environ.items() if name == "TRIBUTARY_HOME"}


def log_tail(path: Path, lines: int = 15) -> str:
    """Last lines of a log file, for error messages; empty if there is none."""
    return "\n".join(end_of_log(path, 16384).splitlines()[-lines:])
