"""Mean and spread of several runs."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.command.app import CommandConsole
from flows.command.compare import show_comparison
from flows.load import load_recipe
from flows.reports.comparison import Spread, compare
from flows.reports.paired_tests import ScoredRun, pair_of
from flows.reports.report import Report, ReportStage
from flows.running.new_run import new_run
from flows.running.records import StageRecord
from infra.errors import InputError
from infra.store.artifacts import ArtifactStore

pytestmark = pytest.mark.unit

Recorded = Callable[..., None]


def _report(run: str, sft: float, rl: float, *, cached: bool = False) -> Report:
    scores = {"base": {"maths": 0.0}, "ppo-sft": {"maths": sft}, "ppo": {"maths": rl}}
    stage = ReportStage(
        name="ppo-rl", kind="rl", digest="d", cached=cached, seconds=rl * 100, artifact=""
    )
    return Report(
        run=run, state="completed", seconds=1.0, stages=[stage], scores=scores, greedy=scores,
        versions={"ppo": ["ppo-sft", "ppo"]},
    )  # fmt: skip


def test_mean_and_sample_deviation_by_hand() -> None:
    """0.5, 0.6, 0.7: mean 0.6; squares 0.01 + 0 + 0.01 over 2 are 0.01, its root 0.1."""
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.6, 0.8), _report("c", 0.7, 0.8)])
    cold = found.scores["ppo-sft"]["maths"]
    assert cold.mean == pytest.approx(0.6)
    assert cold.deviation == pytest.approx(0.1)
    assert cold.values == [0.5, 0.6, 0.7]
    assert found.runs == ["a", "b", "c"]


def test_a_gain_is_that_of_each_run_over_its_own_cold_start() -> None:
    """Gains 0.3, 0.2, 0.1: mean 0.2, deviation 0.1, error 0.1 / sqrt 3: 2 sqrt 3 errors away."""
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.6, 0.8), _report("c", 0.7, 0.8)])
    gain = found.gains["ppo"]["maths"]
    assert gain.values == pytest.approx([0.3, 0.2, 0.1])
    assert gain.standard_errors == pytest.approx(2 * math.sqrt(3))
    assert list(found.gains) == ["ppo"]


def test_best_of_is_compared_for_each_k_that_all_runs_have() -> None:
    scores = {"ppo": {"maths": 0.9}}
    first = _report("a", 0.5, 0.8).model_copy(update={"best_of": {"2": scores, "8": scores}})
    other = _report("b", 0.6, 0.8).model_copy(update={"best_of": {"8": {"ppo": {"maths": 1.0}}}})
    found = compare([first, other]).best_of
    assert {k: of["ppo"]["maths"].values for k, of in found.items()} == {"8": [0.9, 1.0]}


def test_one_run_has_no_spread() -> None:
    assert Spread.of([0.4]).deviation == 0
    assert Spread.of([0.4]).standard_errors is None


def test_runs_that_are_equal_say_so_and_nothing_of_their_error() -> None:
    assert Spread.of([0.4, 0.4]).standard_errors is None
    assert Spread.of([0.4, 0.4]).is_equal
    assert not Spread.of([0.4]).is_equal
    assert not Spread.of([0.4, 0.5]).is_equal


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Runs on record with an evaluation each, by name."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))

    def put(name: str, digest: str, *changes: str) -> None:
        recipe = load_recipe("learning-study", changes)
        record = new_run(recipe, "post-train", {}, name=name, in_process=True)
        folder = tmp_path / name
        folder.mkdir()
        scores = {"base": {"reasoning": 0.0}, "ppo-sft": {"reasoning": 0.5}}
        scores["ppo"] = {"reasoning": 0.5 + int(digest[0], 16) / 100}
        (folder / "scores.json").write_text(
            json.dumps({"scores": scores, "greedy": scores, "cells": []})
        )
        artifacts = ArtifactStore(record.store, tmp_path / "cache")
        made = artifacts.find("evaluate", digest) or artifacts.commit(
            "evaluate", digest, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
            mlflow_run_id="", seconds=3.0,
        )  # fmt: skip
        stage = StageRecord(name="evaluate", kind="evaluate", state="completed", digest=digest)
        record.put_stage(stage.model_copy(update={"artifact": made.url}))

    return put


def _said(*runs: str) -> str:
    console = CommandConsole(record=True, width=200, file=io.StringIO())
    show_comparison(runs, False, False, console)
    return console.export_text()


def test_different_recipes_are_refused_with_what_differs(recorded: Recorded) -> None:
    recorded("one", "a" * 64)
    recorded("two", "b" * 64, "experts.ppo.path.rl.steps=21", "seed=1")
    with pytest.raises(InputError) as caught:
        _said("one", "two")
    assert "experts.ppo.path.1.rl.steps: 20 -> 21" in str(caught.value)
    assert "seed:" not in str(caught.value)


def test_one_recipe_under_two_seeds_is_compared_with_its_n(recorded: Recorded) -> None:
    recorded("one", "a" * 64)
    recorded("two", "b" * 64, "seed=1", "name=other", "resources.servers=1")
    said = _said("one", "two")
    assert "n = 2 runs" in said
    assert "warning" not in said


def test_equal_runs_say_that_they_are_equal(recorded: Recorded) -> None:
    recorded("one", "a" * 64)
    recorded("two", "a" * 64)
    said = _said("one", "two")
    assert re.search(r"warning: one-\S+, two-\S+ share one evaluation", said)
    assert "all equal" in said
    assert "inf" not in said


def test_a_model_that_a_run_lacks_is_left_out() -> None:
    short = _report("b", 0.6, 0.8)
    del short.scores["ppo"]
    found = compare([_report("a", 0.5, 0.8), short])
    assert set(found.scores) == {"base", "ppo-sft"}
    assert found.gains == {}


def test_a_cached_stage_took_no_time() -> None:
    found = compare([_report("a", 0.5, 0.8), _report("b", 0.5, 0.7, cached=True)])
    assert found.seconds["ppo-rl"].values == [80.0]


def _cells(*outcomes: float) -> dict[str, object]:
    """Content of `task_scores.json` with one task."""
    value = sum(outcomes) / len(outcomes)
    cell = {"model": "base", "task": "arc", "metric": "acc", "value": value, "low": None,
            "high": None, "documents": len(outcomes), "outcomes": list(outcomes)}  # fmt: skip
    return {"scores": {"base": {"arc acc": value}}, "cells": [cell]}


def test_tasks_of_lm_eval_are_compared_by_mean_and_by_document() -> None:
    tasks = {"base": {"arc acc": 0.5}}
    first = _report("a", 0.5, 0.8).model_copy(update={"scores": {}, "greedy": {}, "tasks": tasks})
    other = first.model_copy(update={"run": "b", "tasks": {"base": {"arc acc": 0.7}}})
    spread = compare([first, other]).tasks["base"]["arc acc"]
    assert (spread.mean, spread.values) == (pytest.approx(0.6), [0.5, 0.7])
    asked = {"version": "1", "settings": {"tasks": ["arc"], "limit": 4, "fleet": {}}}
    more = {"version": "1", "settings": {"tasks": ["arc", "x"], "limit": 4, "fleet": {"a": 1}}}
    ours = ScoredRun("a", "1", {}, {}, asked, _cells(0, 0, 1, 0))
    theirs = ScoredRun("b", "2", {}, {}, more, _cells(1, 1, 1, 0))
    (score,) = pair_of(ours, theirs).scores
    assert (score.model, score.domain, score.kind) == ("base", "arc acc", "task")
    assert (score.first, score.second, score.better, score.worse) == (0.25, 0.75, 2, 0)
    assert score.p == 0.5, "two documents that differ: 2 x 1/4"
    for content in (ours.task_scores, theirs.task_scores):
        content["cells"][0]["less_is_better"] = True
    (score,) = pair_of(ours, theirs).scores
    assert (score.difference, score.better, score.worse) == (0.5, 0, 2), "a loss rose"
    few = dataclasses.replace(theirs, task_identity={"version": "1", "settings": {"limit": 9}})
    assert pair_of(ours, few).why_not == (
        "no model was scored in both on the same documents of a task"
    )


def test_a_run_without_scores_is_named() -> None:
    empty = _report("b", 0.5, 0.8).model_copy(update={"scores": {}})
    with pytest.raises(InputError, match="run b has no scores to compare"):
        compare([_report("a", 0.5, 0.8), empty])


def test_models_that_are_one_artifact_in_both_runs_are_named_and_not_tested() -> None:
    """x gained 6 of 8 problems, p = 2 / 2^6; adjusted for one test alone, though the base and its
    greedy answers were scored in both runs too."""

    def cells(right: int) -> list[dict[str, object]]:
        same = {"model": "base", "domain": "a", "outcomes": [[0.0]] * 8}
        outcomes = [[1.0]] * right + [[0.0]] * (8 - right)
        x = {"model": "x", "domain": "a", "kind": "score", "outcomes": outcomes}
        return [same | {"kind": "score"}, same | {"kind": "greedy"}, x, x | {"model": "x-nothink"}]

    identity = {"seed": 0, "settings": {"problems": 8}, "domains": [{"name": "a"}]}
    ours = ScoredRun("1", "1", identity, {"cells": cells(0)}, models={"base": "b", "x": "x1"})
    theirs = ScoredRun("2", "2", identity, {"cells": cells(6)}, models={"base": "b", "x": "x2"})
    found = pair_of(ours, theirs)
    assert found.same == ["base"]
    assert [(s.model, s.p, s.p_adjusted) for s in found.scores] == [
        ("x", 2 / 64, 4 / 64), ("x-nothink", 2 / 64, 4 / 64),
    ]  # fmt: skip
    nothing = pair_of(ours, dataclasses.replace(theirs, models=ours.models))
    assert (nothing.scores, nothing.same) == ([], ["base", "x"])
    assert nothing.why_not == "what both scored on the same problems is the same: base, x"


def test_runs_are_compared_under_the_same_setting_of_sampling_alone() -> None:
    """6 of 8 problems better, none worse: McNemar's exact p is 2 / 2^6."""

    def scored(run: str, way: str, right: int) -> ScoredRun:
        outcomes = [[1.0]] * right + [[0.0]] * (8 - right)
        cells = [{"model": "x", "domain": "a", "kind": way, "outcomes": outcomes}]
        identity = {"seed": 0, "settings": {"problems": 8}, "domains": [{"name": "a"}]}
        return ScoredRun(run, run, identity, {"cells": cells}, models={"x": run})

    (found,) = pair_of(scored("1", "t0.6", 0), scored("2", "t0.6", 6)).scores
    assert (found.kind, found.difference, found.p) == ("t0.6", 0.75, 2 / 64)
    assert pair_of(scored("1", "score", 0), scored("2", "t0.6", 6)).scores == []


def test_scores_of_a_setting_are_averaged_over_the_runs_that_all_have_it() -> None:
    def sampled(run: str, **scores: float) -> Report:
        tables = {
            name: {"scores": {"ppo": {"maths": score}}, "best_of": {}, "intervals": {}}
            for name, score in scores.items()
        }
        plain = _report(run, 0.5, 0.8)
        return Report.model_validate({**plain.model_dump(), "sampled": tables})

    found = compare([sampled("a", t2=0.25, t3=1.0), sampled("b", t2=0.75)])
    assert {name: of["ppo"]["maths"].mean for name, of in found.sampled.items()} == {"t2": 0.5}
    assert found.scores["ppo"]["maths"].mean == pytest.approx(0.8)
