"""Tracking against a real MLflow server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows.command.models.named_artifacts import find_named_model
from flows.load import load_recipe
from flows.post_train import FLOW, Round, plan_distill_rounds, plan_post_train
from flows.reports.outcome import Best, ScoreCell
from flows.running.tracked_run import TrackedRun
from infra.errors import InputError
from infra.store.artifacts import ArtifactRecord
from infra.tracking.old_curves import thin_curves
from infra.tracking.pages import front_page
from infra.tracking.rest import Dataset, Metric, MlflowRest, aliased_artifacts
from infra.tracking.spool import deliver_spool, spool_folder
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import StageWork
from tasks.durable.reporter import measured
from tests.parts.chat_parts import random_base
from tests.parts.machine import network
from tests.parts.mlflow_server import MlflowServer
from tests.parts.prefect_form import DRAWN_LATER
from tests.parts.run_records import put_artifact
from tests.parts.trackers import all_trackers_closed

pytestmark = pytest.mark.integration


@pytest.fixture
def mlflow_uri(server: MlflowServer) -> str:
    return server.uri


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    with all_trackers_closed(monkeypatch):
        yield


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
    assert _curve(mlflow_uri, run) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 13.0), (4, 14.0)]


def test_a_long_curve_goes_on_with_each_step_once(server: MlflowServer) -> None:
    rest, steps = MlflowRest(server.uri), 2500
    run = rest.create_run(rest.experiment("long"), "long", {})
    rest.log_metrics(run, [Metric("reward", 1.0, n, n) for n in range(steps)])
    assert rest.steps(run, "reward", 9, steps) == set(range(9, steps))
    resumed = Tracker(server.uri, "long")
    for n in (*range(steps - 20, steps + 5), 3, steps - 30):
        resumed.log(run, n, {"reward": 2.0})
    assert resumed.flush()
    points = [(n, 1.0 if n < steps else 2.0) for n in range(steps + 5)]
    assert _curve(server.uri, run) == points


@pytest.mark.parametrize("steps", [250, 1000])
def test_the_curves_of_runs_that_ended_long_ago_are_thinned_beside_the_server(
    server: MlflowServer, steps: int
) -> None:
    rest = MlflowRest(server.uri)
    experiment = rest.experiment(f"old-{steps}")
    ended, goes_on = (rest.create_run(experiment, name, {}) for name in ("ended", "goes-on"))
    for run in (ended, goes_on):
        rest.log_metrics(run, [Metric("reward", n / 2, n, n) for n in range(steps)])
        rest.log_metrics(run, [Metric("few", 1.0, n, n) for n in range(9)])
    rest.update_run(ended, "FINISHED")
    now = int(time.time() * 1000) + 1000
    assert thin_curves(server.database, now - 86_400_000, dry=True).points == 0, "it is young"
    found = thin_curves(server.database, now, dry=True)
    assert thin_curves(server.database, now, dry=False) == found
    assert thin_curves(server.database, now, dry=False).points == 0, "once is enough"
    kept = _curve(server.uri, ended, "reward")
    assert found.points >= steps - len(kept) >= steps - 102
    assert len(kept) > 60
    assert (kept[0], kept[-1]) == ((0, 0.0), (steps - 1, (steps - 1) / 2))
    assert len(_curve(server.uri, ended, "few")) == 9
    assert len(_curve(server.uri, goes_on, "reward")) == steps
    last = {m["key"]: m["value"] for m in rest.run(ended)["data"]["metrics"]}
    assert last == {"reward": (steps - 1) / 2, "few": 1.0}


def _curve(uri: str, run: str, metric: str = "reward") -> list[tuple[int, float]]:
    """Step and value of every point, as the server lists them."""
    body = {"run_id": run, "metric_key": metric}
    history = httpx.get(f"{uri}/api/2.0/mlflow/metrics/get-history", params=body).json()
    return [(m.get("step", 0), m["value"]) for m in history["metrics"]]


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
    assert tags["tributary.origin_run"] == origin
    assert {"key": "total.outcome", "value": 0.75}.items() <= run["data"]["metrics"][0].items()
    assert run["info"]["status"] == "FINISHED"


def test_an_alias_moves_to_the_newest_version_and_a_digest_registers_once(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "models")
    run = tracker.parent_run("m", "m", {}, {})
    assert tracker.model_tags("demo-reasoning") == {}
    assert tracker.register_model("demo-reasoning", Made(run), "sft", {}) == "1"
    assert tracker.register_model("demo-reasoning", Made(run), "best", {}) == "1"
    newer = Made(run, digest="cd" * 32)
    assert tracker.register_model("demo-reasoning", newer, "best", {"by": "rounds"}) == "2"
    assert tracker.model_tags("demo-reasoning") == {"by": "rounds"}
    query = {"name": "demo-reasoning", "alias": "best"}
    path = f"{mlflow_uri}/api/2.0/mlflow/registered-models/alias"
    assert httpx.get(path, params=query).json()["model_version"]["version"] == "2"
    create = f"{mlflow_uri}/api/2.0/mlflow/model-versions/create"
    with httpx.Client() as client:  # more than one page of MLflow's search
        for _ in range(101):
            client.post(create, json={"name": "demo-reasoning", "source": "file:///other"})
    assert tracker.register_model("demo-reasoning", Made(run), "sft", {}) == "1"


def test_an_artifact_is_found_by_its_alias_and_kept_for_it(
    mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put_artifact("rl", "ef" * 32, random_base(tmp_path / "model"))
    tracker = Tracker(mlflow_uri, "aliases")
    run = tracker.parent_run("a", "a", {}, {})
    here = made.model_copy(update={"mlflow_run_id": run})
    tracker.register_model("lab-agent", here, "best", {})
    tracker.register_model("lab-agent", here, "rl", {})
    stack = SimpleNamespace(mlflow_uri=mlflow_uri)
    monkeypatch.setattr("flows.command.models.named_artifacts.load_stack", lambda: stack)
    found = find_named_model("lab-agent@best", "")
    assert found.record is not None
    assert found.record.digest == made.digest
    assert (found.folder / "config.json").is_file()
    with pytest.raises(InputError, match="no model lab-agent with the alias `worst`"):
        find_named_model("lab-agent@worst", "")
    known = {(a.name, a.alias, a.digest) for a in aliased_artifacts(mlflow_uri)}
    assert {("lab-agent", alias, made.digest) for alias in ("best", "rl")} <= known


def test_only_rounds_move_the_best_version_that_rounds_chose(mlflow_uri: str) -> None:
    recipe = load_recipe("cpu-smoke")
    plan = plan_distill_rounds(recipe, "agent", 1)
    tracked = TrackedRun(Tracker(mlflow_uri, "rounds"), recipe, "rounds-run", FLOW)
    made = {
        stage.name: ArtifactRecord(kind=stage.kind, digest=stage.name, url=f"file:///{stage.name}")
        for stage in plan
        if stage.model
    }
    for stage in plan:
        if stage.model:
            tracked.cached(stage, made[stage.name])
    rounds = [
        Round(number=0, model="agent-rl", stage="agent-rl", score=0.5, low=0, high=1),
        Round(
            number=1, model="agent", stage="agent-rl-2", score=0.4, low=0, high=1, promoted=False
        ),
    ]
    tracked.rounds(rounds)
    higher = {"agent": {"agent": 0.9}}
    tracked.register(plan, made, higher, "agent-rl")
    assert _best(mlflow_uri) == "agent-rl"
    tracked.register(plan, made, higher)
    assert _best(mlflow_uri) == "agent-rl", "the highest score of another run changes nothing"
    tracked.register(plan, made, higher, "agent-rl-2")
    assert _best(mlflow_uri) == "agent-rl-2"
    tracked.finish("FINISHED")
    assert _curve(mlflow_uri, tracked.parent, "round/best") == [(0, 0.5), (1, 0.5)]


def _best(uri: str) -> str:
    """Digest of the agent's @best."""
    query = {"name": "cpu-smoke-agent", "alias": "best"}
    path = f"{uri}/api/2.0/mlflow/registered-models/alias"
    tags = httpx.get(path, params=query).json()["model_version"]["tags"]
    return {tag["key"]: tag["value"] for tag in tags}["tributary.digest"]


def test_a_dataset_is_an_input_of_its_run(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "data")
    run = tracker.parent_run("d", "d", {}, {})
    source = json.dumps({"from": "file:///store/artifacts/distill/x/a1"})
    tracker.datasets(run, [Dataset("distilled", source, 1234)])
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


def test_the_machine_s_load_is_logged_beside_the_curves(mlflow_uri: str) -> None:
    tracker = Tracker(mlflow_uri, "load")
    run = tracker.parent_run("load", "load", {}, {})
    with measured(partial(tracker.log, run), 0.05):
        time.sleep(1.5)
    with measured(partial(tracker.log, run), 0.0):
        pass
    assert tracker.flush()
    metrics = {m["key"]: m["value"] for m in MlflowRest(mlflow_uri).run(run)["data"]["metrics"]}
    assert 0 < metrics["system/system_memory_usage_percentage"] <= 100
    assert 0 <= metrics["system/cpu_utilization_percentage"] <= 100


@pytest.fixture
def chromium() -> str:
    return shutil.which("chromium") or pytest.skip("no chromium is installed")


def test_the_pages_say_who_is_best_and_draw_the_experts_curves(
    mlflow_uri: str, chromium: str
) -> None:
    """In a browser: by the links that a run prints, without a click."""
    from playwright.sync_api import sync_playwright

    links = _tracked(mlflow_uri)
    assert front_page(mlflow_uri) == links["MLflow scores"]
    with network(is_changed=False), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.extend(_told_wrong(said)))
        page.on("response", lambda reply: wrong.append(reply.url) if reply.status >= 400 else None)
        for title, texts in {
            "MLflow scores": ["agent 0.75 (run-1)", "score/agent", "0.75"],
            "MLflow comparison": ["agent-rl (outcome_mean)", "reasoning-rl (outcome_mean)"],
            "MLflow run": ["mean outcome", "reasoning-sft"],
            "experiment": ["agent: agent 0.750", "mean outcome"],
        }.items():
            page.goto(links[title], timeout=60_000)
            for text in texts:
                page.get_by_text(text).first.wait_for(state="attached", timeout=60_000)
            assert page.get_by_text("Model training").first.is_visible()
        browser.close()
    # MLflow's own page asks for users, whom only its basic-auth app has.
    assert [url for url in wrong if not url.endswith("/users/current")] == []


def _told_wrong(said: Any) -> list[str]:
    """An error that a page's console shows, with the address that it is about."""
    if said.type != "error" or DRAWN_LATER in said.text:
        return []
    return [f"{said.text}: {said.location['url']}"]


def _tracked(uri: str) -> dict[str, str]:
    """A run whose reasoning expert another run made; -> its links."""
    recipe = load_recipe("cpu-smoke")
    plan = {stage.name: stage for stage in plan_post_train(recipe)}
    origin = Tracker(uri, "pages")
    made_by = origin.stage_run(origin.parent_run("o", "o", {}, {}), "reasoning-rl", "d", {})
    for step in (1, 2, 3):
        origin.log(made_by, step, {"outcome_mean": step / 8, "entropy": 1.0})
    tracked = TrackedRun(Tracker(uri, "pages"), recipe, "run-1", "post-train")
    cached = ArtifactRecord(kind="rl", digest="a" * 64, url="file:///s/a1", mlflow_run_id=made_by)
    tracked.cached(plan["reasoning-rl"], cached)
    agent = plan["agent-rl"]
    work = StageWork(agent.name, agent.spec, {}, agent.resources, "b" * 64)
    with tracked.stage(agent, work) as work:
        assert tracked.tracker is not None
        for step in (1, 2, 3):
            tracked.tracker.log(work.mlflow_run, step, {"outcome_mean": step / 4, "entropy": 1.0})
    scores = {"reasoning-sft": {"reasoning": 0.25}, "agent": {"agent": 0.75, "reasoning": 0.0}}
    tracked.scores(list(plan.values()), scores)
    best = [Best("agent", "agent", ScoreCell(0.75))]
    tracked.say_best(list(plan.values()), scores, {}, best)
    tracked.say_result("agent 0.75")
    tracked.finish("FINISHED")
    assert origin.flush()
    links = tracked.links()
    assert made_by in links["MLflow comparison"], "a cached stage's curves are its origin's"
    logged = MlflowRest(uri).run(work.mlflow_run)
    params = {param["key"]: param["value"] for param in logged["data"]["params"]}
    assert params["settings.steps"] == str(agent.spec.model_dump()["settings"]["steps"])
    assert logged["inputs"]["dataset_inputs"][0]["dataset"]["name"] == "agent problems, rl"
    return links | {"experiment": links["MLflow scores"].partition("/runs")[0]}


LOG_AND_DIE = """
import json, os, signal, sys
from infra.tracking.spool import DeferredRun
from infra.tracking.tracker import Tracker
uri, experiment, run, later = json.loads(sys.argv[1])
tracker = Tracker(uri, experiment)
for step in (2, 3):
    for target in (run, DeferredRun(**later)):
        tracker.log(target, step, {"reward": float(step)})
assert not tracker.flush(timeout=30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_was_killed_gets_every_point_once_also_from_a_killed_process(
    server: MlflowServer,
) -> None:
    """Last in this file: it ends and restarts the server that the tests above share."""
    tracker = Tracker(server.uri, "killed")
    run = tracker.parent_run("k", "k", {}, {})
    for step in range(2):
        tracker.log(run, step, {"reward": float(step)})
    assert tracker.flush()
    later = tracker.later_stage_run(run, "agent-rl", "d1", {"tributary.kind": "rl"})
    server.end(signal.SIGKILL)

    given = json.dumps([server.uri, "killed", run, asdict(later)])
    died = subprocess.run(
        [sys.executable, "-c", LOG_AND_DIE, given],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    tracker.log(run, 3, {"reward": 9.0})  # an attempt that repeats the step
    tracker.log(run, 4, {"reward": 4.0})
    tracker.finish(run, "FINISHED")
    assert not tracker.flush(timeout=30)
    assert len(list(spool_folder().iterdir())) == 2

    server.start()
    deliver_spool(server.uri)  # as `tributary up` does; the tracker's own thread may be first
    began = time.monotonic()
    while any(spool_folder().iterdir()):
        assert time.monotonic() - began < 30
        time.sleep(0.1)
    assert tracker.flush()
    assert _curve(server.uri, run) == [(step, float(step)) for step in range(5)]
    assert MlflowRest(server.uri).run(run)["info"]["status"] == "FINISHED"
    made = tracker.stage_run(run, "agent-rl", "d1", {})
    assert _curve(server.uri, made) == [(2, 2.0), (3, 3.0)]
