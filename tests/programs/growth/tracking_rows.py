"""Tracking: MLflow's store, what waits for it, and the logs of jobs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from infra.stack.cluster import Cluster
from infra.tracking import spool
from infra.tracking.refusals import Refusals
from infra.tracking.rest import Metric
from infra.tracking.spool import Delivery, Entry
from tests.parts.ray_head import RayHead, ray_head
from tests.programs.growth.meter import Figure, Meter, folder_bytes
from tests.programs.growth.registry import HISTORY, WORK, grows

KEYS = 65
"""metrics of an RL step"""


def _points(first: int, steps: int) -> list[Metric]:
    return [Metric(f"k{key}", 0.5, first + n, 0) for n in range(steps) for key in range(KEYS)]


class _AnsweringRest:
    """Stands in for MLflow where only our own memory is measured: it takes everything."""

    def __init__(self, uri: str) -> None: ...

    def run(self, run: str) -> dict[str, Any]:
        return {"info": {}, "data": {"metrics": []}}

    def steps(self, run: str, key: str, first: int, last: int) -> set[int]:
        return set()

    def log_metrics(self, run: str, metrics: Sequence[Metric]) -> None: ...


@grows("metrics on their way to MLflow", "steps before", (2000, 8000, 32_000), memory=HISTORY)
def delivery(size: int, meter: Meter) -> None:
    with patch.object(spool, "MlflowRest", _AnsweringRest), meter.counting():
        sender = Delivery("http://127.0.0.1:1", Refusals())
        for step in range(0, size, 10):
            sender.send([Entry("r" * 32, _points(step, 10))])


@grows("metrics while MLflow is down", "steps", (200, 800, 3200), cpu_s=WORK, bytes=WORK)
def outage(size: int, meter: Meter) -> None:
    waiting = spool.SpoolFile()
    with meter.counting():
        for step in range(size):
            waiting.append(Entry("r" * 32, _points(step, 1)))
    waiting.release()
    meter.count(Figure.BYTES, folder_bytes(spool.spool_folder()))


def _mlflow(folder: Path) -> Any:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    return SqlAlchemyStore(f"sqlite:///{folder}/mlflow.db", str(folder / "artifacts"))


def _mlflow_run(store: Any) -> str:
    return store.create_run("0", "u", 1, [], "run").info.run_id


def _log(store: Any, run: str, first: int, steps: int) -> None:
    from mlflow.entities import Metric as Point

    points = [Point(m.key, m.value, 1, m.step) for m in _points(first, steps)]
    store.log_batch(run, points, [], [])


@grows("a step into MLflow", "steps before", (50, 200, 800), cpu_s=HISTORY, bytes=HISTORY)
def mlflow_points(size: int, meter: Meter) -> None:
    """Bytes: what ten steps add to its database."""
    store = _mlflow(meter.folder)
    run = _mlflow_run(store)
    for first in range(0, size, 10):
        _log(store, run, first, 10)
    before = folder_bytes(meter.folder)
    with meter.counting():
        for step in range(size, size + 10):
            _log(store, run, step, 1)
    meter.count(Figure.BYTES, folder_bytes(meter.folder) - before)


@grows("a run of MLflow, found by its tags", "runs before", (50, 200, 800), cpu_s=HISTORY)
def mlflow_runs(size: int, meter: Meter) -> None:
    from mlflow.entities import RunTag, ViewType

    store = _mlflow(meter.folder)
    for number in range(size):
        tags = [RunTag("tributary.digest", f"d{number}"), RunTag("tributary.stage", "agent-rl")]
        store.create_run("0", "u", number, tags, "run")
    wanted = "tags.`tributary.digest` = 'd7' and tags.`tributary.stage` = 'agent-rl'"
    with meter.counting():
        for _ in range(5):
            assert store.search_runs(["0"], wanted, ViewType.ACTIVE_ONLY, 1)


@grows("a log that is followed from elsewhere", "lines", (40, 160, 640), bytes=WORK)
def log_followed(size: int, meter: Meter) -> None:
    """Bytes: what the head sends of a log that grows by a line a look, over one lost connection."""
    lines = [f"step {n:4}: {'x' * 988}" for n in range(size)]
    log = "".join(f"{line}\n" for line in lines)
    found: list[str] = []
    with ray_head(RayHead(log, cuts=[len(log) // 2])) as head, meter.counting():
        Cluster(head.url).follow("job", found.append, threading.Event(), poll=0.0)
    assert found == lines
    meter.count(Figure.BYTES, head.sent)
