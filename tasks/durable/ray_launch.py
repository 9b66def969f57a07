"""Stage jobs as Ray jobs: they outlive the flow that submitted them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.cluster import OVER, Cluster
from tasks.durable.launch import STOP_SECONDS, JobState, log_path, title_of

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
