"""One entry that MLflow cannot take costs that entry only; against a real MLflow server."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from infra.tracking.refusals import refused_folder
from infra.tracking.rest import MlflowRest
from infra.tracking.spool import deliver_spool, spool_folder
from infra.tracking.tracker import Tracker
from tests.parts.mlflow_server import MlflowServer
from tests.parts.trackers import all_trackers_closed

pytestmark = pytest.mark.integration

ODD_NAMES = (
    "acc@1", "pass@k", "reward (mean)", "a=b", "x>5", "wörter", "über alles", "a b", "a:b",
    "a/../b", "/abs", "a//b", "a/", "..", ".", "", "../up", "x" * 260, "y/" * 200, "half \ud83d",
    "zero\0", "line\nfeed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    with all_trackers_closed(monkeypatch):
        yield


@pytest.fixture
def uri(server: MlflowServer) -> str:
    return server.uri


def _run(uri: str, name: str) -> tuple[Tracker, str]:
    tracker = Tracker(uri, name)
    return tracker, tracker.parent_run(name, name, {}, {})


def _points(uri: str, run: str, metric: str) -> list[tuple[int, float]]:
    """Step and value of every point, as the server lists them."""
    body = {"run_id": run, "metric_key": metric}
    history = httpx.get(f"{uri}/api/2.0/mlflow/metrics/get-history", params=body).json()
    return [(m.get("step", 0), float(m["value"])) for m in history["metrics"]]


def _shown(uri: str, run: str) -> dict[str, Any]:
    return MlflowRest(uri).run(run)


def test_what_is_not_finite_arrives_and_takes_nothing_along(uri: str) -> None:
    tracker, run = _run(uri, "not-finite")
    for step, value in enumerate((0.5, math.nan, math.inf, -math.inf, 2.5)):
        tracker.log(run, step, {"distance": value, "seen": float(step)})
    tracker.finish(run, "FINISHED")
    assert tracker.flush()
    assert tracker.refused() == ""
    values = [value for _, value in _points(uri, run, "distance")]
    largest = 1.7976931348623157e308
    assert values[0::4] == [0.5, 2.5]
    assert math.isnan(values[1])
    assert values[2:4] == [largest, -largest]
    assert _points(uri, run, "seen") == [(step, float(step)) for step in range(5)]
    assert _shown(uri, run)["info"]["status"] == "FINISHED"


def test_metrics_of_any_name_arrive_and_so_does_the_end_of_the_run(uri: str) -> None:
    tracker, run = _run(uri, "names")
    for step in (1, 2):
        tracker.log(run, step, {"loss": 1.0 / step, **dict.fromkeys(ODD_NAMES, float(step))})
        tracker.log(run, step, {"acc#1": 7.0})
    tracker.finish(run, "FINISHED")
    assert tracker.flush()
    assert tracker.refused() == ""
    found = _shown(uri, run)
    metrics = {metric["key"]: metric["value"] for metric in found["data"]["metrics"]}
    assert len(metrics) == len(ODD_NAMES) + 2
    assert (metrics["acc_1"], metrics["pass_k"], metrics["reward _mean_"]) == (2.0, 2.0, 2.0)
    assert next(key for key, value in metrics.items() if value == 7.0).startswith("acc_1-")
    assert _points(uri, run, "loss") == [(1, 1.0), (2, 0.5)]
    assert found["info"]["status"] == "FINISHED"


def test_numbers_of_other_libraries_are_numbers_and_what_is_none_is_named(uri: str) -> None:
    tracker, run = _run(uri, "numbers")
    values: dict[str, Any] = {
        "f32": np.float32(0.5), "i64": np.int64(3), "bool": True, "npbool": np.bool_(False),
        "tensor": torch.tensor(0.25), "grad": torch.tensor(1.5, requires_grad=True),
        "bf16": torch.tensor([2.0], dtype=torch.bfloat16), "decimal": Decimal("0.125"),
        "none": None, "text": "0.5", "vector": torch.zeros(3), "huge": 10**400,
    }  # fmt: skip
    tracker.log(run, 1, values)
    assert tracker.flush()
    metrics = {m["key"]: m["value"] for m in _shown(uri, run)["data"]["metrics"]}
    assert metrics == {
        "f32": 0.5, "i64": 3.0, "bool": 1.0, "npbool": 0.0, "tensor": 0.25, "grad": 1.5,
        "bf16": 2.0, "decimal": 0.125,
    }  # fmt: skip
    said = tracker.refused()
    assert all(name in said for name in ("none", "text", "vector", "huge", "is no number"))
    assert tracker.refused() == "", "it is said once"


def _old_line(run: str, key: str, value: float, step: int = 2, status: str = "") -> bytes:
    points = [{"key": key, "value": value, "step": step, "timestamp": 1}]
    entry = {"run": run, "metrics": [] if status else points, "status": status}
    return json.dumps(entry).encode() + b"\n"


def test_a_home_with_a_poisoned_file_heals_by_itself(uri: str) -> None:
    """Files as killed processes leave them: what can be sent is sent, all else is set aside."""
    tracker, old = _run(uri, "poisoned")
    spool_folder().mkdir(parents=True)
    lines = [
        _old_line(old, "distance", math.nan),
        _old_line(old, "acc@1", 0.5),
        b'{"run": "x", "metr\0\0\n',
        b'{"run": 7}\n',
        b"\xff\xfe\n",
        _old_line("0" * 32, "loss", 1.0),
        _old_line(old, "loss", 0.25, status="FINISHED"),
        _old_line(old, "loss", 0.125),
        _old_line(old, "loss", 9.0, step=3)[:-9],
    ]
    (spool_folder() / "1-1.jsonl").write_bytes(b"".join(lines))
    (spool_folder() / "2-1.jsonl").write_bytes(_old_line(old, "later", 4.0))

    new = tracker.parent_run("next", "next", {}, {})
    tracker.log(new, 1, {"loss": 1.0})
    tracker.finish(new, "FINISHED")
    assert tracker.flush()
    assert _points(uri, new, "loss") == [(1, 1.0)]
    assert _shown(uri, new)["info"]["status"] == "FINISHED"
    assert math.isnan(_points(uri, old, "distance")[0][1])
    assert _points(uri, old, "acc_1") == [(2, 0.5)]
    assert _points(uri, old, "loss") == [(2, 0.125)]
    assert _points(uri, old, "later") == [(2, 4.0)]
    assert _shown(uri, old)["info"]["status"] == "FINISHED"
    assert list(spool_folder().iterdir()) == []
    kept = (refused_folder() / "entries.jsonl").read_text().splitlines()
    assert len(kept) == 4
    said = tracker.refused()
    assert "a line of a spool file (3 times)" in said
    assert "the metric loss" in said
    assert deliver_spool(uri) == (0, "")


def test_runs_and_experiments_that_somebody_deleted_cost_their_own_points(uri: str) -> None:
    tracker, gone = _run(uri, "deleted")
    other = tracker.parent_run("other", "other", {}, {})
    httpx.post(f"{uri}/api/2.0/mlflow/runs/delete", json={"run_id": gone}).raise_for_status()
    for step in range(40):
        for run in (gone, other):
            tracker.log(run, step, {"loss": float(step), "entropy": 1.0})
    tracker.finish(other, "FINISHED")
    assert tracker.flush()
    assert len(_points(uri, other, "loss")) == 40
    assert "somebody deleted the run" in tracker.refused()
    body = {"experiment_id": tracker.experiment}
    httpx.post(f"{uri}/api/2.0/mlflow/experiments/delete", json=body).raise_for_status()
    again, run = _run(uri, "deleted")
    again.log(run, 0, {"loss": 1.0})
    assert again.flush()
    assert _points(uri, run, "loss")[0] == (0, 0.0 if run == other else 1.0)


def test_params_tags_and_texts_that_mlflow_would_refuse_are_made_to_fit(uri: str) -> None:
    tracker, parent = _run(uri, "texts")
    params = {"acc@1": "1", "half": "\ud83d", "long": "x" * 9000, "fine": "2"}
    tags = {"tributary.input.a@b": "1", "half": "cut \ud83d", "long": "y" * 9000}
    run = tracker.stage_run(parent, "half \ud83d" + "n" * 300, "d1", tags, params)
    tracker.describe(run, "zero \0, half \ud83d " + "z" * 9000)
    tracker.show_columns(["metrics.acc@1"], "half \ud83d " + "z" * 30_000)
    logged = _shown(uri, run)["data"]
    assert {"fine", "half", "long"} <= {param["key"] for param in logged["params"]}
    assert {"half", "long", "mlflow.note.content"} <= {tag["key"] for tag in logged["tags"]}
