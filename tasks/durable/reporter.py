"""Where a body's numbers go: metrics to MLflow, progress and warnings to the job's followers; how
busy the machine of a job is, as curves of its MLflow run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from infra.json_text import numbers_of
from infra.processes.outages import Outage, outages
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
_LOOK_S, _SHOW_S, _OVER_S = 1.0, 10.0, 60.0
"""how often to look for outages, and to show that they last; how long after one it is over"""


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
    _done: int = 0
    _total: int = 1
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
        """Return numbers of any library as Python's; what is none is left out, with a warning a
        name."""
        numbers, others = numbers_of(values)
        for name, kind in others.items():
            if name not in self.others:
                self.others[name] = kind
                self.warn(f"the metric {name} is left out: a value of type {kind} is no number")
        return numbers

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.pulse.beat()
        self._done, self._total = done, total
        now = time.monotonic()
        if done < total and now - self._last_progress < PROGRESS_SECONDS:
            return
        self._last_progress = now
        emit(self.job, "progress", done=done, total=total, message=message)

    def waits(self, message: str) -> None:
        """Show what it waits for, in place of what it did last."""
        emit(self.job, "progress", done=self._done, total=self._total, message=message)

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


async def saying_outages(body: Coroutine[Any, Any, object], reporter: JobReporter) -> object:
    """Return what the body returns. Meanwhile each service of others that it waits for is said,
    once.
    """
    watch = asyncio.create_task(_say_outages(reporter), name="outages")
    try:
        return await body
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _say_outages(reporter: JobReporter) -> None:
    last: dict[str, float] = {}
    """when each service was last waited for, on the clock of this machine since its start"""
    shown = -_SHOW_S
    while True:
        found, now = outages(), time.monotonic()
        for outage in found:
            if outage.service not in last:
                reporter.warn(f"{waited_for(outage)}. No rollout counts as failed for it")
            last[outage.service] = now
            reporter.pulse.beat()
        if found and now - shown >= _SHOW_S:
            reporter.waits("; ".join(map(waited_for, found)))
            shown = now
        for service in [name for name, at in last.items() if now - at > _OVER_S]:
            del last[service]
            reporter.warn(f"{service} is not waited for any more")
        await asyncio.sleep(_LOOK_S)


def waited_for(outage: Outage) -> str:
    """Say what is waited for in a sentence, with times of this machine."""
    began, end = (
        time.strftime("%d %b %H:%M", time.localtime(at)) for at in (outage.since, outage.until)
    )
    return (
        f"waits since {began} for {outage.service}: {outage.why}. If it answers nothing until {end}"
        " the stage ends, to be resumed"
    )


@contextlib.contextmanager
def open_reporter(given: JobInput, pulse: Pulse) -> Generator[JobReporter]:
    """The job's reporter; what is still buffered is flushed, bounded, when the body ends."""
    run = given.mlflow_run or given.mlflow_deferred
    if not run:
        yield JobReporter(given.job, "", None, pulse)
        return
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


Log = Callable[[int, Mapping[str, float]], None]
"""takes a step and its values"""


@contextmanager
def measured(log: Log, every_seconds: float) -> Generator[None]:
    """Log the machine's load from now to the end of the block. A step is a Unix second, so that the
    points of a later attempt come after those of an earlier one. 0 seconds: nothing is logged."""
    if not every_seconds:
        yield
        return
    over = threading.Event()

    def measure() -> None:
        psutil.cpu_percent()  # of the time since the call before
        while not over.wait(every_seconds):
            with suppress(OSError, psutil.Error):  # a moment without figures, not the last one
                log(int(time.time()), load())

    thread = threading.Thread(target=measure, name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def load() -> dict[str, float]:
    """Return the load by the names under which MLflow shows its own."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/disk_usage_percentage": disk.percent,
    }
