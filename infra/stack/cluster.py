"""Ray jobs by id: submit, look up, follow, stop.

Speaks Ray's documented job API over HTTP: no ray is imported, every call is bounded, and an outage
of the head is waited out. Job history dies with the head: an id may become `unknown`.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import httpx
from websockets.exceptions import ConnectionClosedOK, WebSocketException
from websockets.sync.client import ClientConnection, connect

from infra.access import bearer
from infra.errors import InfrastructureError
from infra.home import runtime_dir
from infra.processes.network import goes_by_proxies, loosed
from infra.stack import Stack
from infra.stack.flow_jobs import is_elsewhere

JobState = Literal["unknown", "pending", "running", "succeeded", "failed", "stopped"]
OVER: frozenset[JobState] = frozenset({"succeeded", "failed", "stopped"})

OUTAGE_SECONDS = 120.0
"""how long a head that does not answer is waited for"""
STOP_SECONDS = 25
"""what a job gets between SIGTERM and SIGKILL, for its last checkpoint"""
POLL_SECONDS = 0.25
REMOTE_POLL_SECONDS = 1.0
"""where the head is on another machine"""
CALL_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 60.0
"""between two connections to a log that bring nothing new: each brings all that is known"""
_LAST_TRIES = 3
"""connections for the last lines of a job that is over"""
LOOK_SECONDS = 5.0
"""what a question gets that is asked again anyway: Ray's dashboard loses one now and then"""


class Cluster:
    """The jobs of one Ray head, by the URL of its dashboard.

    `logs` is the head's folder of logs when it is on this machine: read there, lines come at once.
    """

    def __init__(self, dashboard: str, logs: Path | None = None, *, is_ours: bool = False) -> None:
        self.dashboard = dashboard.rstrip("/")
        self._logs = logs
        # Proxies are for clusters elsewhere.
        self._is_remote = not is_ours and not self.dashboard.startswith("http://127.0.0.1")
        self._http = httpx.Client(
            base_url=self.dashboard, verify=self._is_remote, headers=bearer(),
            trust_env=self._is_remote and goes_by_proxies(self.dashboard),
        )  # fmt: skip

    @classmethod
    def of(cls, stack: Stack) -> Cluster:
        """The local stack's, or that of this home in another pod, whose logs are not here."""
        logs = runtime_dir() / "ray" / "session_latest" / "logs"
        return cls(stack.ray_dashboard, None if is_elsewhere() else logs, is_ours=True)

    def submit(
        self,
        job: str,
        entrypoint: Sequence[str],
        env: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> bool:
        """Submit a job under an id of our own; False when that id is taken: attach to it then.

        Returns once Ray has accepted it. Raises InfrastructureError when Ray is down or refuses.
        """
        # No CPUs are asked for: a job that waits for a resource cannot be stopped.
        body = {
            "submission_id": job,
            "entrypoint": shlex.join(entrypoint),
            "runtime_env": {"env_vars": {**env, "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}},
            "metadata": dict(metadata),
        }
        reply = self._call("POST", "/api/jobs/", json=body)
        if reply.status_code == 200:
            return True
        if "already exists" in reply.text:
            return False
        raise self._refused(f"job {job}", reply)

    def state(self, job: str, *, seconds: float = CALL_SECONDS) -> JobState:
        """Raises InfrastructureError when the head does not answer within `seconds`."""
        return _state(self._details(job, seconds))

    def metadata(self, job: str) -> dict[str, str]:
        """Return what the job was submitted with; nothing for an unknown one."""
        details = self._details(job) or {}
        return details.get("metadata") or {}

    def follow(
        self,
        job: str,
        on_line: Callable[[str], None],
        let_go: threading.Event,
        *,
        poll: float | None = None,
        outage: float = OUTAGE_SECONDS,
        look: float = LOOK_SECONDS,
    ) -> JobState:
        """Hand over the job's lines from its first one until it is over, unknown, or let go; its
        state.

        A head that does not answer is waited for `outage` seconds, then InfrastructureError. Each
        question gets `look` seconds and is then asked again, on a new connection.
        """
        usual = POLL_SECONDS if self._logs else REMOTE_POLL_SECONDS
        pause = usual if poll is None else poll
        log = _Lines(on_line)
        stream = None if self._logs else _LogStream(self._log_socket(job), log.feed, look)
        answered = time.monotonic()
        with stream or nullcontext():
            while True:
                try:
                    state = self.state(job, seconds=look)
                    if self._logs is not None:
                        log.feed(_log_from(self._logs, job, log.offset))  # all before `state`
                    elif stream is not None and state != "unknown":
                        stream.hand_over(whole=state in OVER)
                    answered = time.monotonic()
                except InfrastructureError:
                    if time.monotonic() - answered > outage:
                        raise
                    state = "pending"
                if state in OVER or state == "unknown" or let_go.wait(pause):
                    log.close()
                    return state

    def stop(self, job: str, *, wait: float = STOP_SECONDS + 10) -> JobState:
        """Ask the job to leave a checkpoint and end; its state when it is over, or after `wait`."""
        deadline = time.monotonic() + wait
        while (state := self.state(job)) not in OVER and state != "unknown":
            if time.monotonic() > deadline:
                break
            # Ray forgets a stop that comes before the job's process runs, so it is repeated.
            self._call("POST", f"/api/jobs/{job}/stop")
            time.sleep(POLL_SECONDS)
        return state

    def url(self, job: str) -> str:
        """The job's page for a person."""
        return f"{self.dashboard}/#/jobs/{job}"

    def _details(self, job: str, seconds: float = CALL_SECONDS) -> dict[str, Any] | None:
        reply = self._call("GET", f"/api/jobs/{job}", seconds=seconds)
        if reply.status_code == 404:
            return None
        if reply.status_code != 200:
            raise self._refused(f"the look-up of job {job}", reply)
        return reply.json()

    def _log_socket(self, job: str) -> Callable[[float], ClientConnection]:
        """Connects within so many seconds to where the head sends the log, from its start, and
        each new line."""
        url = f"ws{self.dashboard.removeprefix('http')}/api/jobs/{job}/logs/tail"
        return partial(_connected, url, dict(bearer()), proxy=True if self._is_remote else None)

    def _call(
        self, method: str, path: str, json: object = None, *, seconds: float = CALL_SECONDS
    ) -> httpx.Response:
        try:
            reply = loosed(self._http.request(method, path, json=json, timeout=seconds))
        except httpx.HTTPError as error:
            raise InfrastructureError(
                f"Ray's job API at {self.dashboard} does not answer ({type(error).__name__}: "
                f"{error}). See `tributary status`; `tributary up` restarts what died"
            ) from error
        if reply.status_code in (401, 403):
            raise InfrastructureError(
                f"Ray at {self.dashboard} asks for another key than this home has, so it is not "
                "the stack's own head: end that one, and start the stack with `tributary up`"
            )
        return reply

    def _refused(self, what: str, reply: httpx.Response) -> InfrastructureError:
        return InfrastructureError(
            f"Ray at {self.dashboard} refused {what}: HTTP {reply.status_code}: "
            f"{reply.text[-500:].strip()}. See `tributary doctor`"
        )


def _log_from(logs: Path, job: str, offset: int) -> bytes:
    """The log's bytes from an offset; nothing before the job has written any."""
    try:
        with (logs / f"job-driver-{job}.log").open("rb") as file:
            file.seek(offset)
            return file.read()
    except OSError:
        return b""


def _connected(
    url: str, headers: Mapping[str, str], seconds: float, *, proxy: Literal[True] | None
) -> ClientConnection:
    """Without compression: Ray's dashboard passes the offer on, and then ends the stream at the
    first compressed message."""
    return connect(
        url, additional_headers=headers, open_timeout=seconds, close_timeout=1.0, max_size=None,
        compression=None, proxy=proxy,
    )  # fmt: skip


class _LogStream:
    """A log as the head sends it: once, and once more after each lost connection, when what was
    handed over is left out. Lines are neither lost nor doubled."""

    def __init__(
        self, open_: Callable[[float], ClientConnection], feed: Callable[[bytes], None], look: float
    ) -> None:
        self._open = open_
        self._feed = feed
        self._look = look
        """seconds for a connection, and between two messages of a job that is over"""
        self._socket: ClientConnection | None = None
        self._fed = 0
        self._known = 0
        """bytes that this connection will send and an earlier one has sent"""
        self._is_whole = False
        """whether the head has ended the stream itself, as it does when the job is over"""
        self._pause = self._not_before = 0.0
        """of connections that bring nothing new, each next one is made later"""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._drop()

    def hand_over(self, *, whole: bool) -> None:
        """Hand over what has come; of a job that is over (`whole`), all that can be had."""
        for _ in range(_LAST_TRIES if whole else 1):
            if whole and self._is_whole:
                return
            try:
                self._receive(self._look if whole else 0.0)
            except (OSError, WebSocketException):  # its state is asked for, and tells of an outage
                self._drop()

    def _receive(self, wait: float) -> None:
        """Until nothing comes for so long."""
        if self._socket is None:
            if not wait and time.monotonic() < self._not_before:
                return
            self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE_SECONDS)
            self._not_before = time.monotonic() + self._pause
            self._socket = self._open(self._look)
            self._known, self._is_whole = self._fed, False
        until = time.monotonic() + self._look
        while wait or time.monotonic() < until:
            try:
                data = str(self._socket.recv(wait)).encode()
            except TimeoutError:
                return
            except ConnectionClosedOK:
                self._drop()
                self._is_whole = True
                return
            new = data[self._known :]
            self._known -= len(data) - len(new)
            self._fed += len(new)
            self._pause = 0.0 if new else self._pause
            self._feed(new)

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Lines:
    """Cuts a growing log into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.offset = 0
        self._on_line = on_line
        self._part = b""

    def feed(self, data: bytes) -> None:
        self.offset += len(data)
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))

    def close(self) -> None:
        if self._part:
            self._on_line(self._part.decode(errors="replace"))
            self._part = b""


def _state(details: dict[str, Any] | None) -> JobState:
    said = str(details["status"]).lower() if details else ""
    return next((state for state in get_args(JobState) if state == said), "unknown")
