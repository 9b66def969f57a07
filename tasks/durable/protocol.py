"""What a flow and a stage's job say to each other.

To the job: one `JobInput`, in the store at `jobs/<job id>.json`. From the job: JSON lines on its
standard output that start with `MARK` and name the job, mixed with ordinary log lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Protocol

from infra.config import Config
from infra.json_text import writable
from infra.shown_text import shown
from infra.store.artifacts import ArtifactRecord
from infra.tracking.spool import DeferredRun
from infra.user_files import UserFiles
from tasks.stage import Resources, StageResources

MARK = "@tributary "
_UNIFIED = "unified"
_SCORE = "score/"
_MOST = 3
"""scores in one line"""


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


def emit(job: str, event: str, **values: Any) -> None:
    """Print one event for the follower of the job with this id."""
    print(MARK + json.dumps({"job": job, "event": event, **values}), flush=True)


def dispatch(job: str, text: str, watch: JobWatcher) -> None:
    """Hand one line of the job's output to whom it concerns. What is no event of this job is shown
    as text: a model or a row may have said it, and a part of the user's printed it."""
    match _event(job, text):
        case {"event": "progress", "done": int(done), "total": int(total), "message": str(said)}:
            watch.progress(done, total, shown(writable(said)))
        case {"event": "warn", "message": str(said)}:
            watch.warn(shown(writable(said)))
        case _:
            watch.line(shown(text))


def said_of(job: str, line: str) -> str:
    """Return a line of the job's log as a person reads it: an event in words, any other as it
    is."""
    match _event(job, line):
        case {"event": "progress", "done": int(done), "total": int(total), "message": str(said)}:
            return f"{done} of {total}: {said}\n"
        case {"event": "warn", "message": str(said)}:
            return f"warning: {said}\n"
        case _:
            return line


def _event(job: str, text: str) -> Any:
    """None for a line that is no event of this job."""
    if not text.startswith(MARK):
        return None
    try:
        event = json.loads(text.removeprefix(MARK))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and event.get("job") == job else None


def outcome_of(metrics: Mapping[str, float], planned_steps: int) -> str:
    """Example: `solved at step 9 of 24: outcome 0.31 to 0.97`; empty where nothing tells one."""
    steps = int(metrics.get("steps", 0))
    if "outcome_last" in metrics:
        change = f"outcome {metrics['outcome_first']:.2f} to {metrics['outcome_last']:.2f}"
        if metrics.get("solved"):
            return f"solved at step {steps} of {planned_steps}: {change}"
        return f"{change} in {steps} steps"
    if "loss" in metrics:
        return f"loss {metrics['loss']:.3f} after {steps} steps"
    if "admitted" in metrics:
        return f"{int(metrics['admitted'])} of {int(metrics['tried'])} problems admitted"
    if "tensors_differing" in metrics:
        differing, tensors = int(metrics["tensors_differing"]), int(metrics["tensors"])
        return f"{differing} of {tensors} tensors differ" if differing else "the same weights"
    if "rows" in metrics:
        return f"{int(metrics['rows'])} rows"
    if "parameters" in metrics:
        return f"{int(metrics['parameters']):,} parameters"
    return _scores(metrics)


def _scores(metrics: Mapping[str, float]) -> str:
    """The unified model's mean over domains; without one, that of the best models."""
    by_model: dict[str, list[float]] = {}
    for name, score in metrics.items():
        if name.startswith(_SCORE):
            by_model.setdefault(name.split("/")[1], []).append(score)
    means = {model: fmean(scores) for model, scores in by_model.items()}
    ranked = [_UNIFIED] if _UNIFIED in means else sorted(means, key=lambda model: -means[model])
    return ", ".join(f"{model} {means[model]:.2f}" for model in ranked[:_MOST])
