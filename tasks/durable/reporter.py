"""Where a body's numbers go: metrics to MLflow, progress and warnings to the job's followers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from infra.json_text import numbers_of
from infra.store.artifacts import ArtifactRecord
from infra.store.manifest import StageWarning
from infra.tracking.rest import Dataset
from infra.tracking.spool import RunRef
from tasks.durable.protocol import JobInput, emit
from tasks.stage import Pulse

if TYPE_CHECKING:
    from infra.tracking.tracker import Tracker

PROGRESS_SECONDS = 0.5
LINE_SECONDS, MOST_LINE_SECONDS, LINE_SHARE = 1.0, 30.0, 0.002
"""between two steps that the log shows: at first, at most, and of what the stage has run. Ray, the
flow and Prefect each pass every line on, and Prefect keeps each; MLflow has every step"""


def line_pause(seconds: float) -> float:
    """Seconds to the next step that the log of a stage which has run for so long shows."""
    return min(max(LINE_SECONDS, LINE_SHARE * seconds), MOST_LINE_SECONDS)


@dataclass(slots=True)
class JobReporter:
    """The `Reporter` of a job. MLflow gets every step; the log one a second, or all without it."""

    job: str
    run: RunRef
    tracker: Tracker | None
    pulse: Pulse
    others: dict[str, str] = field(default_factory=dict[str, str])
    """the type of each metric that once was no number, by its name"""
    _last_progress: float = 0.0
    _last_line: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    warnings: list[StageWarning] = field(default_factory=list[StageWarning])
    """those that are kept with the artifact"""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.pulse.beat()
        values = self.numbers(values)
        if self.tracker is not None:
            self.tracker.log(self.run, step, values)
            if time.monotonic() - self._last_line < line_pause(time.monotonic() - self._began):
                return
            self._last_line = time.monotonic()
        shown = " ".join(f"{key}={value:.4g}" for key, value in values.items())
        print(f"step {step}: {shown}", flush=True)

    def numbers(self, values: Mapping[str, object]) -> dict[str, float]:
        """Those of any library as Python's; what is none is left out, with a warning a name."""
        numbers, others = numbers_of(values)
        for name, kind in others.items():
            if name not in self.others:
                self.others[name] = kind
                self.warn(f"the metric {name} is left out: a value of type {kind} is no number")
        return numbers

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.pulse.beat()
        now = time.monotonic()
        if done < total and now - self._last_progress < PROGRESS_SECONDS:
            return
        self._last_progress = now
        emit(self.job, "progress", done=done, total=total, message=message)

    def warn(self, message: str) -> None:
        emit(self.job, "warn", message=message)

    def keep_warning(self, warning: StageWarning) -> None:
        self.warnings.append(warning)
        self.warn(str(warning))

    def dataset(self, name: str, rows: int, source: str) -> None:
        if self.tracker is not None and isinstance(self.run, str):
            self.tracker.datasets(self.run, [Dataset(name, json.dumps({"from": source}), rows)])

    def finish(self, record: ArtifactRecord) -> None:
        if self.tracker is not None:
            from infra.tracking.tracker import final

            self.tracker.log(self.run, 0, final(record.metrics))


@contextlib.contextmanager
def open_reporter(given: JobInput, pulse: Pulse) -> Generator[JobReporter]:
    """The job's reporter; what is still buffered is flushed, bounded, when the body ends."""
    run = given.mlflow_run or given.mlflow_deferred
    if not run:
        yield JobReporter(given.job, "", None, pulse)
        return
    from infra.tracking.system_metrics import measured
    from infra.tracking.tracker import Tracker

    tracker = Tracker(given.mlflow_uri, given.mlflow_experiment)
    try:
        with measured(partial(tracker.log, run), given.system_metrics_s):
            yield JobReporter(given.job, run, tracker, pulse)
    finally:
        tracker.flush()
        tracker.close()
        if refused := tracker.refused():
            emit(given.job, "warn", message=refused)
