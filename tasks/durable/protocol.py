"""What a flow and a stage's job say to each other.

To the job: one `JobInput`, in the store at `jobs/<job id>.json`. From the job: JSON lines on its
standard output that start with `MARK`, mixed with ordinary log lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from infra.config import Config
from infra.json_text import writable
from infra.store.artifacts import ArtifactRecord
from infra.tracking.spool import DeferredRun
from infra.user_files import UserFiles
from tasks.stage import Resources, StageResources

MARK = "@tributary "


class JobInput(Config):
    """All a job needs, wherever it runs."""

    job: str
    """its id, and the holder of its leases"""
    stage: str
    run: str = ""
    """of the recipe, whose attempt this is"""
    kind: str
    spec_name: str
    """by which the registry finds the kind: `rl`, or `module:Class` of the user's own"""
    spec: dict[str, Any]
    digest: str
    again: str = ""
    """as in the stage's identity"""
    attempt: int
    inputs: dict[str, ArtifactRecord]
    resources: StageResources
    pool: Resources
    hooks: UserFiles = UserFiles()
    """the user's own files"""
    mlflow_uri: str = ""
    mlflow_experiment: str = ""
    mlflow_run: str = ""
    mlflow_deferred: DeferredRun | None = None
    """in place of `mlflow_run` while MLflow does not answer"""
    system_metrics_s: float = 0.0
    """from one look at the machine's load to the next; 0: none"""


def job_path(job: str) -> str:
    return f"jobs/{job}.json"


class JobWatcher(Protocol):
    """Observer of a running job."""

    def line(self, text: str) -> None: ...

    def progress(self, done: int, total: int, message: str) -> None: ...

    def warn(self, message: str) -> None: ...

    def started(self, job: str, attempt: int, mine: bool) -> None: ...


def emit(event: str, **values: Any) -> None:
    """Print one event for the follower."""
    print(MARK + json.dumps({"event": event, **values}), flush=True)


def dispatch(text: str, watch: JobWatcher) -> None:
    """Hand one line of a job's output to whom it concerns. A broken event is shown as text."""
    if not text.startswith(MARK):
        watch.line(text)
        return
    try:
        event = json.loads(text.removeprefix(MARK))
        _deliver(event, watch)
    except (ValueError, KeyError):
        watch.line(text)


def _deliver(event: Mapping[str, Any], watch: JobWatcher) -> None:
    match event["event"]:
        case "progress":
            watch.progress(int(event["done"]), int(event["total"]), writable(str(event["message"])))
        case "warn":
            watch.warn(writable(str(event["message"])))
        case other:
            raise ValueError(f"unknown event {other}")
