"""Tracking against a real MLflow server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from infra.mlflow_rest import MlflowRest
from infra.tracking import Tracker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts", "--workers", "1",
    ]  # fmt: skip
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        uri = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 90
        while not _is_up(uri):
            assert server.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield uri
    finally:
        os.killpg(server.pid, 15)
        server.wait(20)


def _is_up(uri: str) -> bool:
    try:
        return httpx.get(f"{uri}/health", timeout=1).is_success
    except httpx.HTTPError:
        return False


@dataclass
class Made:
    """What `register_model` and `cached_stage` need of an artifact."""

    mlflow_run_id: str
    kind: str = "rl"
    digest: str = "ab" * 32
    url: str = "file:///store/artifacts/rl/abababababab/a1"
    metrics: dict[str, float] = field(default_factory=lambda: {"outcome": 0.75})


def test_a_resumed_recipe_finds_its_runs_again(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "resume")
    parent = tracker.parent_run("demo-1", "demo", {"seed": 0}, {})
    stage = tracker.stage_run(parent, "reasoning-rl", "d1", {"tributary.kind": "rl"})
    again = Tracker(mlflow_uri, "resume")
    assert again.parent_run("demo-1", "demo", {"seed": 0}, {}) == parent
    assert again.stage_run(parent, "reasoning-rl", "d1", {}) == stage
    assert again.stage_run(parent, "reasoning-rl", "d2", {}) != stage


def test_a_step_is_never_logged_twice(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "steps")
    run = tracker.parent_run("r", "r", {}, {})
    for step in range(3):
        tracker.log(run, step, {"reward": float(step), "loss": 1.0})
    assert tracker.flush()
    resumed = Tracker(mlflow_uri, "steps")
    for step in range(1, 5):
        resumed.log(run, step, {"reward": 10.0 + step})
    assert resumed.flush()
    body = {"run_id": run, "metric_key": "reward"}
    history = httpx.get(f"{mlflow_uri}/api/2.0/mlflow/metrics/get-history", params=body).json()
    points = [(m.get("step", 0), m["value"]) for m in history["metrics"]]
    assert points == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 13.0), (4, 14.0)]


def test_a_cached_stage_shows_its_metrics_and_origin(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "cached")
    parent = tracker.parent_run("first", "first", {}, {})
    origin = tracker.stage_run(parent, "general-rl", "ab" * 32, {})
    second = tracker.parent_run("second", "second", {}, {})
    run_id = tracker.cached_stage(second, "general-rl", Made(origin))
    assert tracker.flush()
    run = MlflowRest(mlflow_uri).run(run_id)
    tags = {t["key"]: t["value"] for t in run["data"]["tags"]}
    assert tags["mlflow.parentRunId"] == second
    assert origin in tags["mlflow.note.content"]
    assert {"key": "final/outcome", "value": 0.75}.items() <= run["data"]["metrics"][0].items()
    assert run["info"]["status"] == "FINISHED"


def test_an_alias_moves_to_the_newest_version_and_a_digest_registers_once(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "models")
    run = tracker.parent_run("m", "m", {}, {})
    assert tracker.register_model("demo-reasoning", Made(run), "sft") == "1"
    assert tracker.register_model("demo-reasoning", Made(run), "best") == "1"
    assert tracker.register_model("demo-reasoning", Made(run, digest="cd" * 32), "best") == "2"
    query = {"name": "demo-reasoning", "alias": "best"}
    path = f"{mlflow_uri}/api/2.0/mlflow/registered-models/alias"
    assert httpx.get(path, params=query).json()["model_version"]["version"] == "2"


def test_a_dataset_is_an_input_of_its_run(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "data")
    run = tracker.parent_run("d", "d", {}, {})
    tracker.dataset(run, "distilled", 1234, "file:///store/artifacts/distill/x/a1")
    inputs = MlflowRest(mlflow_uri).run(run)["inputs"]["dataset_inputs"]
    assert inputs[0]["dataset"]["name"] == "distilled"


def test_metrics_wait_without_a_server_and_flush_gives_up_in_time() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    tracker = Tracker(dead, "none")
    tracker.log("run", 0, {"reward": 1.0})
    began = time.monotonic()
    assert not tracker.flush(timeout=0.5)
    assert time.monotonic() - began < 3
    tracker.finish("run", "FINISHED")  # a warning, no error


def test_metrics_of_a_run_that_is_gone_are_dropped(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "gone")
    tracker.log("0" * 32, 0, {"reward": 1.0})
    assert tracker.flush(timeout=20)
