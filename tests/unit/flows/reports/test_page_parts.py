"""What a run's page says: sentences, seconds, counts, samples, the river. All pure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.reports.charts import charts_of
from flows.reports.outcome import MEAN, score_tables
from flows.reports.page import spans_of
from flows.reports.pipeline_chart import RiverStage, river
from flows.reports.rendering import data_block, p_text, seconds_text, unbroken
from flows.reports.shown_samples import sample_set
from flows.reports.stage_view import Count, StageView, counted, failure_of, seconds_of, tail
from flows.running.records import RunState, StageRecord, State
from infra.store.artifacts import Manifest
from infra.timeline import TRAINER, Event, Trace
from tasks.admit.spec import AdmitSettings, AdmitSpec
from tasks.domain import ScoredDomain
from tasks.reward.spec import RewardSpec
from tasks.rl.curve import BestOfN, Curve, ScorePoint
from tests.parts.report_parts import cell, report, row

pytestmark = pytest.mark.unit

RECIPE = load_recipe("cpu-smoke")
PLAN = {stage.name: stage for stage in plan_post_train(RECIPE)}
PLAN["agent-admit"] = replace(
    PLAN["evaluate"],
    name="agent-admit",
    spec=AdmitSpec(settings=AdmitSettings(), domains=[ScoredDomain.of(d) for d in RECIPE.domains]),
)
PLAN["agent-reward"] = replace(
    PLAN["evaluate"],
    name="agent-reward",
    spec=RewardSpec.model_validate(
        {"settings": {"steps": 1, "data": {"files": ["x"]}, "optimizer": {"lr": 1}}}
    ),
)


def view(
    name: str, metrics: dict[str, float] | None = None, seconds: float = 10.0, **fields: Any
) -> StageView:
    planned: PlannedStage = PLAN[name]
    manifest = None
    if metrics is not None:
        manifest = Manifest(
            kind=planned.kind, digest="d" * 64, attempt=1, files=[], identity={}, inputs={},
            code={}, seeds={}, metrics=metrics, mlflow_run_id="", seconds=seconds, created=0.0,
            libraries={}, machine={},
        )  # fmt: skip
    record = StageRecord(name=name, kind=planned.kind, state="completed")
    return StageView(planned, fields.pop("record", record), manifest, **fields)


# Scores


def test_the_interval_of_a_mean_is_made_of_the_domains_own():
    """0.5 (0.3 to 0.7) and 0.1 (0 to 0.4): below sqrt(.2^2 + .1^2) / 2 = 0.1118, above
    sqrt(.2^2 + .3^2) / 2 = 0.1803."""
    intervals = {"scores": {"x": {"a": (0.3, 0.7), "b": (0.0, 0.4)}}}
    made = report({"x": {"a": 0.5, "b": 0.1}}, intervals=intervals)
    (table,) = score_tables(made, {"cells": [cell("x", "a", [[1, 0], [0, 1], [1, 1]])]})
    mean = table.rows["x"][MEAN]
    assert mean.value == pytest.approx(0.3)
    assert (mean.low, mean.high) == (
        pytest.approx(0.188197, abs=1e-6),
        pytest.approx(0.480278, abs=1e-6),
    )
    assert (table.rows["x"]["a"].problems, table.rows["x"]["a"].samples) == (3, 2)


def test_each_setting_of_sampling_has_tables_of_its_own():
    mine = {
        "scores": {"x": {"a": 0.75}},
        "best_of": {"2": {"x": {"a": 1.0}}},
        "intervals": {"scores": {"x": {"a": (0.6, 0.9)}}, "best_of_2": {"x": {"a": (0.7, 1.0)}}},
    }
    made = report({"x": {"a": 0.5}}, sampled={"t0.6-p0.95": mine})
    warm = cell("x", "a", [[1, 0], [1, 1], [1, 1], [0, 1]], "t0.6-p0.95")
    plain, sampled, best = score_tables(made, {"cells": [cell("x", "a", [[1], [0]]), warm]})
    assert [t.title for t in (plain, sampled, best)] == [
        "sampled at temperature 1", "sampled t0.6-p0.95", "pass@2, t0.6-p0.95",
    ]  # fmt: skip
    first, second, third = (t.rows["x"]["a"] for t in (plain, sampled, best))
    assert (first.value, first.problems, first.samples) == (0.5, 2, 1)
    assert (second.value, second.low, second.problems, second.samples) == (0.75, 0.6, 4, 2)
    assert (third.value, third.low) == (1.0, 0.7)


# Seconds


def test_the_seconds_of_an_rl_stage_add_up():
    metrics = {
        "work_seconds": 8.0, "trainer_idle_seconds": 3.0, "train_seconds": 2.0,
        "publish_seconds": 1.0, "checkpoint_seconds": 0.5,
    }  # fmt: skip
    hold = Trace([Event(TRAINER, "hold", 0.0, 0.25, 1, {})], {}, 0)
    found = seconds_of(view("agent-rl", metrics, trace=hold))
    assert found is not None
    assert found.parts == {
        "sample": 3.0, "train": 2.0, "publish": 1.0, "hold": 0.25, "checkpoint": 0.5,
        "other": 1.25, "start and end": 2.0,
    }  # fmt: skip


def test_sums_over_attempts_are_scaled_to_the_attempt_that_is_shown():
    metrics = {"work_seconds": 4.0, "train_seconds": 6.0, "checkpoint_seconds": 2.0}
    found = seconds_of(view("agent-sft", metrics))
    assert found is not None
    assert found.parts == {"train": 3.0, "checkpoint": 1.0, "start and end": 6.0}


def test_a_resumed_stage_is_drawn_where_it_was_last_at_work():
    sft = StageRecord(name="agent-sft", kind="sft", state="completed", started=50.0, seconds=100.0)
    # It failed after 1,000 s, and took 100 s more when it was resumed.
    rl = StageRecord(
        name="agent-rl", kind="rl", state="completed", started=950.0, seconds=1100.0, before=1000.0
    )
    drawn = spans_of([view("agent-sft", record=sft), view("agent-rl", record=rl)])
    assert [(span["left"], span["width"]) for span in drawn] == [(0, 10), (90, 10)]
    assert [span["seconds"] for span in drawn] == [100, 1100]


def test_a_stage_that_is_not_done_has_no_seconds():
    assert seconds_of(view("agent-sft")) is None


# Counts


def test_every_filter_of_distillation_is_counted():
    counts = {"agent": {"sampled": 8, "wrong": 6, "kept": 2}}
    (table,) = counted([view("unified-distill", {}, counts=counts)])
    assert (table.stage, table.title) == ("unified-distill", "rollouts of agent")
    assert list(table.counts) == [
        Count("sampled", 8, 8, True), Count("wrong", 6, 8), Count("kept", 2, 8, True),
    ]  # fmt: skip


def test_problems_that_were_refused_are_counted_by_their_first_reason():
    counts = {"agent, rl": {"tried": 9, "admitted": 6, "random": 2, "leak": 1}}
    (table,) = counted([view("agent-admit", {}, counts=counts)])
    assert table.title == "problems of agent, rl"
    assert list(table.counts) == [
        Count("tried", 9, 9, True), Count("admitted", 6, 9, True),
        Count("refused: random actions score", 2, 9),
        Count("refused: its prompt or a tool shows the solution", 1, 9),
    ]  # fmt: skip


def test_groups_and_rollouts_of_rl_are_counted():
    counts = {
        "rollouts": {"completed": 30, "truncated": 2},
        "groups": {"sampled": 4, "trained on": 3, "filtered: equal": 1, "trained on again": 0},
    }
    rollouts, groups = counted([view("agent-rl", {}, counts=counts)])
    assert [c.name for c in rollouts.counts] == ["completed", "truncated"]
    assert list(groups.counts) == [
        Count("sampled", 4, 4, True), Count("trained on", 3, 4, True),
        Count("filtered: equal", 1, 4),
    ]  # fmt: skip


def test_bad_rows_of_the_users_files_are_counted_by_reason():
    metrics = {"rows_read": 100.0, "bad_rows": 3.0, "bad_rows_no_answer": 3.0}
    (table,) = counted([view("agent-sft", metrics)])
    assert list(table.counts) == [
        Count("read and used", 97, 100, True), Count("bad: no_answer", 3, 100),
    ]  # fmt: skip


def test_held_out_pairs_of_a_reward_model_are_shown_by_kind():
    groups = [{"name": "margin 1", "right": 3, "pairs": 4}]
    (table,) = counted([view("agent-reward", {}, counts={"by_margin": groups, "by_length": []})])
    assert "by the data's margin" in table.title
    assert list(table.counts) == [Count("margin 1", 3, 4, True)]


def test_failures_of_an_evaluation_are_counted():
    one = {"rollouts": 8, "truncated_share": 0.25, "malformed_share": 0.0, "failed_share": 0.125}
    cells = [one | {"failure": "no box"}, one | {"failure": ""}]
    ended, failures = counted([view("evaluate", {}, scores={"cells": cells})])
    assert {c.name: c.value for c in ended.counts} == {
        "completed": 10, "truncated": 4, "malformed": 0, "failed": 2,
    }  # fmt: skip
    assert list(failures.counts) == [Count("no box", 1, 2)]


# Samples


def test_a_sample_has_the_values_of_trained_tokens_alone():
    made = sample_set({"agent-rl": [row("step 3", trainer=[0, 0, -0.25, -0.5])]}, {}, str)
    (sample,) = made.samples
    assert (sample["tokens"], sample["mask"]) == ([5, 6, 7, 8], "0011")
    assert sample["logprobs"] == [-0.5, -0.5]
    assert sample["differences"] == [0.25, 0.0]
    assert sample["versions"] == [[2, 2]]
    assert made.pieces == {5: "5", 6: "6", 7: "7", 8: "8"}


def test_what_training_changed_is_paired_by_problem_and_kind():
    rows = [
        row("x-sft score", "p1", reward=0.0), row("x-sft score", "p2", reward=0.0),
        row("x-sft score", "p3", reward=1.0), row("x score", "p1", reward=0.25),
        row("x score", "p2", reward=1.0), row("x score", "p3", reward=1.0),
        row("x greedy", "p3", reward=0.0),
    ]  # fmt: skip
    made = sample_set({"evaluate": rows}, {"x": ["x-sft", "x"]}, str)
    changed = [tuple(made.samples[i]["problem"] for i in pair) for pair in made.pairs]
    assert changed == [("p2", "p2"), ("p1", "p1")], "the largest change first, the equal one not"
    assert [made.samples[i]["model"] for i in made.pairs[0]] == ["x-sft", "x"]


def test_a_full_page_has_some_of_every_label_and_says_how_many_there_are():
    rows = [row(f"{model} score", f"p{n}") for model in ("a", "b") for n in range(50)]
    made = sample_set({"evaluate": rows}, {}, str, budget=3000)
    models = [s["model"] for s in made.samples]
    assert 0 < len(models) < 100
    assert abs(models.count("a") - models.count("b")) <= 1
    assert made.kept == 100
    assert len(json.dumps(made.samples)) < 3500


def test_of_a_long_sample_both_ends_are_shown():
    long = row("step 1", tokens=list(range(3000)), mask=[0] * 1000 + [1] * 2000)
    (sample,) = sample_set({"agent-rl": [long]}, {}, str).samples
    assert (sample["length"], sample["gap"]) == (3000, [500, 2000])
    assert sample["tokens"] == [*range(500), *range(2500, 3000)]
    assert len(sample["logprobs"]) == 500


def test_without_a_tokenizer_samples_are_text():
    (sample,) = sample_set({"evaluate": [row("x score")]}, {}, None).samples
    assert (sample["prompt"], sample["response"]) == ("ask", "answer")
    assert "tokens" not in sample


def test_an_older_gallery_without_the_trainers_logprobs_is_shown():
    older = {k: v for k, v in row("step 1").items() if k != "trainer_logprobs"}
    assert "differences" not in sample_set({"agent-rl": [older]}, {}, str).samples[0]


# River


def stage(
    name: str, *inputs: str, expert: str = "", state: State = "completed", kind: str = "rl"
) -> RiverStage:
    return RiverStage(name, kind, state, "3 s", expert, inputs, "<about>")


def test_the_river_draws_each_stage_with_its_state_and_widens():
    stages = [
        stage("base"), stage("a-sft", "base", expert="a"), stage("b-sft", "base", expert="b"),
        stage("one", "a-sft", "b-sft", state="cached"), stage("<two>", "one", "base"),
        stage("evaluate", "base", "a-sft", "<two>", kind="evaluate", state="pending"),
    ]  # fmt: skip
    drawn = river(stages)
    wide, tall = (ElementTree.fromstring(f"<svg{part}") for part in drawn.split("<svg")[1:])
    for svg in (wide, tall):
        names = [t.text or "" for t in svg.iter("text") if t.attrib["class"] == "name"]
        assert sorted(names) == sorted(["base", "a-sft", "b-sft", "one", "<two>", "evaluate"])
        states = [g.attrib["class"] for g in svg.iter("g")]
        assert states == ["node completed"] * 3 + ["node cached", "node completed", "node pending"]
        boxes = [(float(r.attrib["x"]), float(r.attrib["y"])) for r in svg.iter("rect")]
        assert len(set(boxes)) == 6, "no two stages in one place"
    flows = [p.attrib for p in wide.iter("path")]
    assert len(flows) == 7, "to the evaluation only from what nothing else follows"
    assert max(float(f["stroke-width"]) for f in flows) == 4.5, "two experts' work: 1.5 + 2 x 1.5"
    assert [f["class"] for f in flows].count("flow detour") == 1, "base to <two>, around `one`"


def test_a_stage_without_inputs_stands_before_the_first_that_needs_it():
    trained = stage("a-rl", "a-sft", "a-admit", expert="a")
    before = [stage("base"), stage("a-sft", "base", expert="a"), stage("a-admit", expert="a")]
    svg = ElementTree.fromstring("<svg" + river([*before, trained]).split("<svg")[1])
    boxes = [(float(r.attrib["x"]), float(r.attrib["y"])) for r in svg.iter("rect")]
    _, sft, admit, rl = boxes
    assert admit[0] == sft[0] < rl[0]
    assert admit[1] > sft[1] == rl[1]
    assert not any(p.attrib["class"] == "flow detour" for p in svg.iter("path"))


def test_experts_of_several_stages_at_once_do_not_overlap():
    drawn = river([stage("base"), *(stage(f"model-{n}", "base") for n in range(4))])
    svg = ElementTree.fromstring("<svg" + drawn.split("<svg")[1])
    places = [(r.attrib["x"], r.attrib["y"]) for r in svg.iter("rect")]
    assert len(set(places)) == 5


# Failure, curves, text


def test_a_failed_run_says_why_where_and_what_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    log = tmp_path / "logs" / "stages" / "job-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(f"line {n}" for n in range(100)))
    failed = StageRecord(name="agent-rl", kind="rl", state="failed", message="no box", job="job-1")
    state = RunState(state="failed", message="stage agent-rl failed: no box")
    found = failure_of("run-1", state, [view("agent-rl", record=failed), view("agent-sft")])
    assert found is not None
    assert found.cause == "stage agent-rl failed: no box"
    assert found.next_command == "tributary resume run-1"
    (one,) = found.stages
    assert one.log == str(log)
    assert one.tail.splitlines()[0] == "line 60"
    assert one.tail.splitlines()[-1] == "line 99"
    assert failure_of("run-1", RunState(state="completed"), []) is None


def test_the_tail_of_a_log_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 100_000)
    assert len(tail(tmp_path / "log")) == 16_384
    assert tail(tmp_path / "none") == ""


def test_curves_have_intervals_and_no_number_that_is_none() -> None:
    point = ScorePoint(step=4, version=4, outcome=0.5, stderr=0.1, problems=8, wanted=8)
    curve = Curve(training={1: 0.25}, held_out={"agent": [point]})
    none = [(1, float("nan"))]
    series = {"entropy": [(1, 1.23456), *none], "grad_norm": none, "unknown": [(1, 1.0)]}
    charts = charts_of([view("agent-rl", {}, series=series), view("base")], {"agent-rl": curve})
    assert list(charts) == ["agent-rl"]
    outcomes, entropy = charts["agent-rl"]
    assert outcomes["lines"][1] == {"name": "held out: agent", "points": [[4, 0.5, 0.196]]}
    assert entropy["lines"][0]["points"] == [[1, 1.235]]
    series = {"outcome_mean_agent": [(1, 0.5)], "outcome_mean_agent-nothink": [(1, 0.25)]}
    series |= {"disagreement_taste": [(1, 0.125)]}
    drawn, apart = charts_of([view("agent-rl", {}, series=series)], {"agent-rl": curve})["agent-rl"]
    assert apart["title"] == "disagreement on taste, standard deviation"
    assert apart["lines"][0]["points"] == [[1, 0.125]]
    assert [line["name"] for line in drawn["lines"]] == [
        "training samples", "training samples: agent-nothink", "held out: agent",
    ]  # fmt: skip


def test_the_true_score_is_drawn_by_the_root_of_the_distance_from_the_start() -> None:
    def point(step: int, outcome: float, proxy: float, *best: BestOfN) -> ScorePoint:
        return ScorePoint(
            step=step, version=step, outcome=outcome, stderr=0.1, problems=8, wanted=8,
            proxy=proxy, best_of_n=list(best),
        )  # fmt: skip

    two = BestOfN(n=2, kl=0.193147, outcome=0.75, stderr=0.1, proxy=0.3)
    points = [point(0, 0.5, 0.2, two), point(2, 0.625, 0.4), point(4, 0.25, 0.9)]
    curve = Curve(held_out={"d": points}, kl_from_start={1: 0.0, 2: 0.1, 3: 0.25, 4: 2.25})
    charts = charts_of([view("agent-rl", {})], {"agent-rl": curve})["agent-rl"]
    _, true, given = charts
    assert true["title"] == "outcome, by distance from the start"
    assert true["lines"] == [
        {"name": "RL: d", "points": [[0.0, 0.5, 0.196], [0.5, 0.625, 0.196], [1.5, 0.25, 0.196]]},
        {"name": "best of n: d", "points": [[0.439, 0.75, 0.196]]},
    ]
    assert [line["points"] for line in given["lines"]] == [
        [[0.0, 0.2], [0.5, 0.4], [1.5, 0.9]], [[0.439, 0.3]],
    ]  # fmt: skip
    unmeasured = charts_of([view("agent-rl", {})], {"agent-rl": Curve(held_out={"d": points})})[
        "agent-rl"
    ]
    assert [line["name"] for line in unmeasured[1]["lines"]] == ["best of n: d"]


def test_data_cannot_end_its_element() -> None:
    text = data_block({"a": "</script><!-- & \u2028", "b": [{"c": "\u202e\x1b[2J"}]})
    assert not set("<>&\u2028") & set(text)
    shown = {"a": r"</script><!-- & \u2028", "b": [{"c": r"\u202e\x1b[2J"}]}
    assert json.loads(text) == shown


def test_times_and_probabilities_are_short() -> None:
    assert list(map(seconds_text, (0.42, 245, 7800))) == ["0.4 s", "4 min 5 s", "2 h 10 min"]
    assert (p_text(0.0341), p_text(0.0001)) == ("p = 0.034", "p < 0.001")


def test_no_line_of_a_page_ends_between_p_and_its_number() -> None:
    said = "up (+1.0 points, p < 0.001), p = 0.5 of n = 8"
    kept = "up (+1.0_points, p_<_0.001), p_=_0.5 of n_=_8"
    assert unbroken(said) == kept.replace("_", "\N{NO-BREAK SPACE}")
