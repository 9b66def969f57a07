"""Where a stage's job runs: as a Ray job, or as a process of its own on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import psutil

from infra.home import home, write_whole
from infra.processes.children import birth_of, same_process
from infra.secret_references import with_secrets_of_the_store
from infra.stack.cluster import OVER, Cluster

JobState = Literal["unknown", "live", "over"]
STOP_SECONDS = 28.0
"""what a job may take for its last checkpoint: a little more than Ray gives it before it kills"""


class Launcher(Protocol):
    """Starts, finds, follows and stops jobs by id."""

    name: str

    def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None: ...

    def state(self, job: str) -> JobState: ...

    def follow(self, job: str, on_line: Callable[[str], None], let_go: threading.Event) -> None:
        """Hand over the job's lines from its first one; returns when the job is over or gone, or
        when it is to be let go, which it does not notice."""
        ...

    def stop(self, job: str) -> None:
        """Ask the job to leave a checkpoint and end; waits for it, bounded."""
        ...

    def url(self, job: str) -> str:
        """Return where a person looks at the job; empty when there is no page."""
        ...


PART_OF_JOB = "--"
"""between the run, the stage and the rest in a job's id"""


def title_of(job: str) -> str:
    """Return what people call a job. Example: `cpu-demo-20260101-120000-ab12/agent-rl`"""
    return "/".join(job.split(PART_OF_JOB)[:2])


def log_path(job: str) -> Path:
    return home() / "logs" / "stages" / f"{job}.log"


def job_command(root: str, job: str) -> list[str]:
    # -P keeps the working folder off the module path: nothing there can shadow our packages.
    return ["-P", "-m", "tasks.durable.job", root, job]


@dataclass(slots=True)
class LocalLauncher:
    """Jobs as children in sessions of their own: they outlive a killed command."""

    name: str = "local"
    poll_seconds: float = 0.1
    _children: dict[str, subprocess.Popen[bytes]] = field(
        default_factory=dict[str, "subprocess.Popen[bytes]"]
    )

    def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None:
        path = log_path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-u", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=with_secrets_of_the_store(os.environ) | dict(env),
                start_new_session=True,
            )
        self._children[job] = child
        write_whole(path.with_suffix(".pid"), f"{child.pid} {birth_of(child.pid)}")

    def state(self, job: str) -> JobState:
        if job in self._children:
            return "live" if self._children[job].poll() is None else "over"
        pid_file = log_path(job).with_suffix(".pid")
        if not pid_file.exists():
            return "unknown"
        return "over" if _process(pid_file) is None else "live"

    def follow(self, job: str, on_line: Callable[[str], None], let_go: threading.Event) -> None:
        with log_path(job).open(errors="replace") as log:
            part = ""
            while True:
                live = self.state(job) == "live"
                for line in log:  # what was written before the state was read
                    part += line
                    if part.endswith("\n"):
                        on_line(part.rstrip("\n"))
                        part = ""
                if not live or let_go.wait(self.poll_seconds):
                    return

    def stop(self, job: str) -> None:
        child = self._children.get(job)
        process = _process(log_path(job).with_suffix(".pid"))
        if process is None:
            return
        process.terminate()
        try:
            child.wait(STOP_SECONDS) if child else process.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            process.kill()

    def url(self, job: str) -> str:
        return ""


def _process(pid_file: Path) -> psutil.Process | None:
    """The recorded process if it is still the same one and alive."""
    try:
        pid, birth = pid_file.read_text().split()
        return same_process(int(pid), birth)
    except (OSError, ValueError):
        return None


_OF_THIS_HOST = "RAY_AUTH_TOKEN_PATH"


@dataclass(slots=True)
class RayLauncher:
    """A launcher; any process can find its jobs again by their ids."""

    cluster: Cluster
    name: str = "ray"

    def submit(self, job: str, arguments: list[str], env: Mapping[str, str]) -> None:
        """Taken ids are fine: a submission whose reply was lost is sent again.

        The environment is also that of what the job starts on other hosts, where the key may be
        elsewhere: each host's Ray knows where.
        """
        env = {name: text for name, text in env.items() if name != _OF_THIS_HOST}
        shown = {"job_name": title_of(job), "tributary.job": job}
        self.cluster.submit(job, [sys.executable, "-u", *arguments], env, shown)

    def state(self, job: str) -> JobState:
        match self.cluster.state(job):
            case "unknown":
                return "unknown"
            case state:
                return "over" if state in OVER else "live"

    def follow(self, job: str, on_line: Callable[[str], None], let_go: threading.Event) -> None:
        """Lines also go to the home: Ray's own log is lost with its session."""
        path = log_path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", buffering=1) as copy:

            def both(line: str) -> None:
                copy.write(line + "\n")
                on_line(line)

            self.cluster.follow(job, both, let_go)

    def stop(self, job: str) -> None:
        self.cluster.stop(job, wait=STOP_SECONDS)

    def url(self, job: str) -> str:
        return self.cluster.url(job)
