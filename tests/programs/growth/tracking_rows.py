"""Tracking: MLflow's store, what waits for it, and the logs of jobs."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from infra.cluster import Cluster
from infra.tracking import spool
from infra.tracking.refusals import Refusals
from infra.tracking.rest import Metric
from infra.tracking.spool import Delivery, Entry
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

    def steps(self, run: str, key: str) -> set[int]:
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


class _Head(http.server.BaseHTTPRequestHandler):
    """Ray's job API as the follower sees it: each look finds one more line in the log."""

    lines: int
    looks = sent = 0

    def do_GET(self) -> None:
        head = type(self)
        if self.path.endswith("/logs"):
            head.looks += 1
            log = "".join(f"step {n}: {'x' * 1000}\n" for n in range(head.looks))
            told = json.dumps({"logs": log}).encode()
        else:
            state = "SUCCEEDED" if head.looks >= head.lines else "RUNNING"
            told = json.dumps({"status": state}).encode()
        head.sent += len(told)
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None: ...


@grows("a log that is followed from elsewhere", "lines", (40, 160, 640), bytes=WORK)
def log_followed(size: int, meter: Meter) -> None:
    """Bytes: what the head sends."""
    head = type("Head", (_Head,), {"lines": size})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), head)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found: list[str] = []
    with meter.counting():
        cluster = Cluster(f"http://127.0.0.1:{server.server_port}")
        cluster.follow("job", found.append, threading.Event(), poll=0.0)
    server.shutdown()
    assert len(found) >= size
    meter.count(Figure.BYTES, head.sent)
