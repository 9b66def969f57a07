"""What a run says to MLflow: under which alias, and that a server that is down costs no stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from flows.load import load_recipe
from flows.post_train import plan_distill_rounds, plan_post_train
from flows.recipe import Recipe
from flows.running.tracked_run import TrackedRun, kinds_of
from infra.processes.network import free_ports
from infra.store.artifacts import ArtifactRecord
from infra.tracking.tracker import Tracker
from tasks.durable.attempts import StageWork
from tasks.stage import StageResources
from tests.parts.recipe_parts import unified_path

pytestmark = pytest.mark.unit
Trackers = Callable[[str], Tracker]

RECIPE = load_recipe("cpu-smoke")


@pytest.fixture
def trackers() -> Iterator[Trackers]:
    """Trackers of a server; their threads end with the test."""
    with ExitStack() as stack:
        yield lambda uri: stack.enter_context(closing(Tracker(uri, "test")))


def test_each_alias_is_the_last_of_its_kind() -> None:
    plan = plan_distill_rounds(load_recipe("cpu-demo"), "agent", 8)
    names = {kind: stage.name for kind, stage in kinds_of(plan)["agent"].items()}
    assert names == {"sft": "agent-sft-9", "rl": "agent-rl-9"}


def test_each_kind_of_stage_gives_a_model_one_version() -> None:
    versions = kinds_of(
        plan_post_train(load_recipe("cpu-demo", [unified_path("distill", "sft", "opd", "rl")]))
    )
    assert list(versions) == ["reasoning", "agent", "general", "unified"]
    assert {kind: stage.name for kind, stage in versions["unified"].items()} == {
        "sft": "unified-sft", "opd": "unified-opd", "rl": "unified-rl",
    }  # fmt: skip
    assert versions["unified"]["rl"].scored_as == "unified"


def _work() -> StageWork:
    stage = plan_post_train(RECIPE)[0]
    return StageWork(stage.name, stage.spec, {}, StageResources(), "d" * 64)


def _use_all(tracked: TrackedRun) -> None:
    """A run's whole life, each call once."""
    base, record = plan_post_train(RECIPE)[0], ArtifactRecord(kind="base", digest="d", url="")
    with tracked.stage(base, _work()) as work:
        assert work.mlflow_run == ""
    tracked.cached(base, record)
    tracked.made(base, record)
    made = {"agent-sft": record, "agent-rl": record}
    tracked.register(plan_post_train(RECIPE), made, {})
    tracked.scores(plan_post_train(RECIPE), {"base": {"agent": 0.5}})
    tracked.task_scores(plan_post_train(RECIPE), {"base": {"arc_easy acc": 0.5}})
    tracked.say_best(plan_post_train(RECIPE), {"base": {"agent": 0.5}}, {}, [])
    tracked.say_result("base 0.50")
    assert tracked.links() == {}
    assert tracked.stage_url("base") == ""
    tracked.finish("FINISHED")


def test_mlflow_that_is_down_costs_a_warning(
    trackers: Trackers, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = trackers(f"http://127.0.0.1:{free_ports(1)[0]}")
    _use_all(TrackedRun(tracker, RECIPE, "run", "post-train"))
    assert "run run is not in MLflow" in caplog.text


def test_mlflow_that_goes_down_in_mid_run_costs_a_warning(
    trackers: Trackers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = trackers(f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setattr(tracker, "parent_run", lambda *_: "parent")
    monkeypatch.setattr(tracker, "flush", lambda: False)  # it would wait for its bound
    _use_all(TrackedRun(tracker, RECIPE, "run", "post-train"))
    assert "stage base is not in MLflow" in caplog.text


def test_a_run_without_a_policy_compares_losses(
    trackers: Trackers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = trackers(f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setattr(tracker, "parent_run", lambda *_: "parent")
    monkeypatch.setattr(tracker, "url", lambda run="": f"page of {run}")
    monkeypatch.setattr(tracker, "curves_url", lambda runs, names: f"{names} of {runs}")
    plan = {stage.name: stage for stage in plan_post_train(RECIPE)}
    made = ArtifactRecord(kind="sft", digest="d", url="", mlflow_run_id="one")
    tracked = TrackedRun(tracker, RECIPE, "run", "post-train")
    tracked.made(plan["reasoning-sft"], made)
    assert tracked.links()["MLflow comparison"] == "('loss',) of ['one']"
    tracked.made(plan["reasoning-rl"], made.model_copy(update={"mlflow_run_id": "two"}))
    assert tracked.links()["MLflow comparison"] == "('outcome_mean',) of ['two']"


def _best(
    monkeypatch: pytest.MonkeyPatch, recipe: Recipe, scores: dict[str, dict[str, float]], of: str
) -> str:
    """The stage that a model's @best is made by."""
    chosen: dict[tuple[str, str], str] = {}
    tracked = TrackedRun(None, recipe, "run", "post-train")
    monkeypatch.setattr(
        tracked, "_register",
        lambda name, stage, record, alias, tags=None: chosen.update({(name, alias): stage}),
    )  # fmt: skip
    plan = plan_post_train(recipe)
    record = ArtifactRecord(kind="rl", digest="d", url="")
    tracked.register(plan, {stage.name: record for stage in plan}, scores)
    return chosen[f"{recipe.name}-{of}", "best"]


def test_best_is_the_best_of_all_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    rl = RECIPE.model_dump(mode="json")["experts"]["reasoning"]["path"]
    recipe = load_recipe("cpu-smoke", [f"experts.reasoning.path={json.dumps([*rl, rl[-1]])}"])
    scored = {p.name: p.scored_as for p in plan_post_train(recipe) if p.model == "reasoning"}
    assert list(scored) == ["reasoning-sft", "reasoning-rl", "reasoning-rl-2"]
    points = dict(zip(scored.values(), (0.5, 0.9, 0.7), strict=True))
    scores = {version: {"reasoning": value} for version, value in points.items()}
    assert _best(monkeypatch, recipe, scores, "reasoning") == "reasoning-rl"


def test_an_expert_is_judged_in_its_own_domain_whatever_that_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = load_recipe("cpu-smoke", ["experts.agent.domain.name=tools", "unified=null"])
    scores = {
        "agent-sft": {"tools": 0.5, "general": 0.5},
        "agent": {"tools": 0.9, "general": 0.0},
    }
    assert _best(monkeypatch, recipe, scores, "agent") == "agent-rl"
