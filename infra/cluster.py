"""Ray jobs by id: submit, look up, follow, stop.

Speaks Ray's documented job API over HTTP: no ray is imported, every call is bounded, and an outage
of the head is waited out. Job history dies with the head: an id may become `unknown`.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx

from infra.access import bearer
from infra.errors import InfrastructureError
from infra.home import runtime_dir
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
"""where each look brings the whole log"""
CALL_SECONDS = 30.0
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
        is_remote = not is_ours and not self.dashboard.startswith("http://127.0.0.1")
        self._http = httpx.Client(
            base_url=self.dashboard, trust_env=is_remote, verify=is_remote, headers=bearer()
        )

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
        """What the job was submitted with; nothing for an unknown one."""
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
        answered = time.monotonic()
        while True:
            try:
                state = self.state(job, seconds=look)
                log.feed(self._log_from(job, log.offset, look))  # all written before `state`
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

    def tail(self, job: str, lines: int) -> list[str]:
        """The job's last lines of output."""
        return self._log_from(job, 0, CALL_SECONDS).decode(errors="replace").splitlines()[-lines:]

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

    def _log_from(self, job: str, offset: int, seconds: float) -> bytes:
        """The log's bytes from an offset; nothing before the job has written any."""
        if self._logs is not None:
            try:
                with (self._logs / f"job-driver-{job}.log").open("rb") as file:
                    file.seek(offset)
                    return file.read()
            except OSError:
                return b""
        reply = self._call("GET", f"/api/jobs/{job}/logs", seconds=seconds)
        if reply.status_code != 200:
            return b""
        return str(reply.json().get("logs") or "").encode()[offset:]

    def _call(
        self, method: str, path: str, json: object = None, *, seconds: float = CALL_SECONDS
    ) -> httpx.Response:
        try:
            reply = self._http.request(method, path, json=json, timeout=seconds)
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
    match str(details["status"]).lower() if details else "unknown":
        case "pending":
            return "pending"
        case "running":
            return "running"
        case "succeeded":
            return "succeeded"
        case "failed":
            return "failed"
        case "stopped":
            return "stopped"
        case _:
            return "unknown"
