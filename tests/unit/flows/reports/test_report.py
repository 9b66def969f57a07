"""A run's record, its report in the shape that programs read, and its page."""

from __future__ import annotations

import json
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from curricula.built_in_curricula import BUILT_IN, FLAWS
from curricula.procedural import Procedural
from flows.command.live_table import show_end
from flows.load import load_recipe, validate_recipe
from flows.post_train import plan_post_train
from flows.reports.page import markdown, page
from flows.reports.rendering import with_code
from flows.reports.report import Report, build_report, notes, score_table, training_table
from flows.running.finish import message_of, result_of
from flows.running.new_run import new_run
from flows.running.records import RunRecord, RunState, StageRecord, find_run, store_to_show
from flows.running.run import recorded
from infra.errors import InputError
from infra.hooks import resolve
from infra.shown_text import markdown_text
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import StageWarning
from infra.timeline import TRAINER, Timeline, write_trace
from tasks.admit.spec import ADMISSION_FILE, REFUSED_FILE
from tasks.rl.curve import Curve, ScorePoint

pytestmark = pytest.mark.unit

SCORES = {
    "base": {"reasoning": 0.0, "agent": 0.0, "general": 0.0},
    "reasoning-sft": {"reasoning": 0.6, "agent": 0.0, "general": 0.0},
    "reasoning": {"reasoning": 0.8, "agent": 0.0, "general": 0.1},
    "unified-sft": {"reasoning": 0.7, "agent": 0.6, "general": 0.5},
    "unified": {"reasoning": 0.8, "agent": 0.9, "general": 0.7},
    "agent-sft": {"reasoning": 0.0, "agent": 0.5, "general": 0.0},
    "agent": {"reasoning": 0.0, "agent": 0.9, "general": 0.0},
}


def _scores_file() -> dict[str, Any]:
    """As an evaluation writes it: four problems of two samples in an expert's own domain, and three
    of the unified model's in two."""
    outcomes = {
        "agent-sft": [[0, 0], [1, 0], [1, 0], [1, 1]],
        "agent": [[1, 0], [1, 1], [1, 1], [1, 1]],
    }
    cells = [
        {"model": model, "domain": "agent", "kind": "score", "outcomes": values}
        for model, values in outcomes.items()
    ]
    cells += [
        {"model": model, "domain": domain, "kind": "score", "outcomes": values}
        for model, of in {
            "unified-sft": {"agent": [[0, 0], [1, 0]], "general": [[0]]},
            "unified": {"agent": [[1, 0], [1, 1]], "general": [[1]]},
        }.items()
        for domain, values in of.items()
    ]
    tables = {
        "best_of": {"2": {"agent": {"agent": 1.0}}},
        "intervals": {"scores": {"agent": {"agent": [0.6, 1]}}},
    }
    return {"scores": SCORES, "greedy": {"base": {}}, "cells": cells, **tables}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """A run whose evaluation is in the store."""
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path / "home"))
    record = new_run(load_recipe("cpu-smoke"), "post-train", {}, in_process=True)
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "scores.json").write_text(json.dumps(_scores_file()))
    artifacts = ArtifactStore(record.store, tmp_path / "cache")
    digest = "e" * 64
    made = artifacts.commit(
        "evaluate", digest, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=3.0,
    )  # fmt: skip
    record.put_stage(
        StageRecord(name="base", kind="base", state="cached", digest="b" * 64, cached=True)
    )
    record.put_stage(
        StageRecord(name="evaluate", kind="evaluate", state="completed", digest=digest,
                    artifact=made.url, seconds=3.2, started=10.0)
    )  # fmt: skip
    record.put_state(RunState(state="completed", started=1.0, seconds=12.5))
    return record


def _report(record: RunRecord) -> Report:
    return build_report(record, plan_post_train(record.recipe()))


def test_the_report_has_exactly_the_agreed_shape(record: RunRecord) -> None:
    shown = _report(record).model_dump()
    assert set(shown) == {
        "run", "state", "seconds", "stages", "scores", "greedy", "best_of", "intervals", "gains",
        "scaling", "tasks", "versions", "curves", "admissions", "rounds", "sampled",
        "warnings", "no_verdict", "pathologies",
    }  # fmt: skip
    assert [stage["name"] for stage in shown["stages"]] == ["base", "evaluate"]
    assert set(shown["stages"][0]) == {"name", "kind", "digest", "cached", "seconds", "artifact"}
    assert shown["stages"][0]["cached"] is True
    assert (shown["state"], shown["seconds"], shown["scores"]) == ("completed", 12.5, SCORES)


def test_the_report_says_what_was_refused(record: RunRecord, tmp_path: Path) -> None:
    folder = tmp_path / "admitted"
    folder.mkdir()
    line = {"domain": "agent", "split": "rl", "id": "a", "cause": "idle", "reasons": ["free"]}
    (folder / REFUSED_FILE).write_text(f"{json.dumps(line)}\n")
    counts = {"agent, rl": {"tried": 2, "admitted": 1, "idle": 1}}
    (folder / ADMISSION_FILE).write_text(json.dumps(counts))
    digest = "a" * 64
    made = ArtifactStore(record.store, tmp_path / "cache").commit(
        "admit", digest, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=3.0,
    )  # fmt: skip
    record.put_stage(
        StageRecord(name="agent-admit", kind="admit", state="completed", digest=digest,
                    artifact=made.url, started=10.0)
    )  # fmt: skip
    loaded = load_recipe("cpu-smoke").model_dump(mode="json")
    loaded["experts"]["agent"]["path"].insert(1, {"admit": {"problems": {"rl": 2}}})
    plan = plan_post_train(validate_recipe(loaded, "here"))
    admitted = build_report(record, plan).admissions["agent-admit"]
    assert (admitted.counts, admitted.refused) == (counts, [line])


def test_a_run_is_found_by_id_name_recipe_or_as_the_latest(record: RunRecord) -> None:
    named = new_run(load_recipe("cpu-smoke"), "post-train", {}, name="tuesday", in_process=True)
    assert find_run(record.run).run == record.run
    assert find_run("tuesday").run == named.run
    assert find_run("cpu-smoke").run == named.run
    assert find_run().run == named.run
    for wrong, said in (("tuesdy", "did you mean `tuesday`"), ("cpu-smoke/rl", "alone: cpu-smoke")):
        with pytest.raises(InputError, match=said):
            find_run(wrong)


def test_a_run_that_does_not_exist_is_refused_with_those_that_do(record: RunRecord) -> None:
    with pytest.raises(InputError, match=f"no run.*`nothing`.*{record.run}"):
        find_run("nothing")


def test_the_recipe_comes_back_from_the_record_unchanged(record: RunRecord) -> None:
    assert record.recipe() == load_recipe("cpu-smoke")


def test_the_mean_stands_last_in_the_table(record: RunRecord) -> None:
    header, rows = score_table(SCORES)
    assert header == ["model", "reasoning", "agent", "general", "mean"]
    assert rows[4] == ["unified", "0.800", "0.900", "0.700", "0.800"]


def test_the_notes_say_that_the_gap_to_experts_is_large_by_construction(record: RunRecord) -> None:
    said = " ".join(notes(_report(record), record.recipe()))
    assert "50.0 points above the best expert's" in said  # 0.8 less the means 0.3 of both experts
    assert "a large gap between them and the unified model is by construction" in said
    # gains .5, .5, .5, 0: n = 6, 1.5 / 6 -+ 1.959964 x sqrt((1.75 / 6 - 1 / 16) / 6), which is
    # .25 -+ .38304;
    # of the 8 signs of three equal gains 2 are as far from 0
    assert (
        "Since agent-sft, agent moved from 0.50 to 0.88 in its own domain (+37.5 points, 95%"
        " interval -13.3 to +63.3, p = 0.250). On the 1 problem that agent-sft never"
        " solved in 2 samples, agent scores 0.50." in said
    )


def test_first_and_last_version_stand_side_by_side_with_intervals(record: RunRecord) -> None:
    header, rows = training_table(_report(record))
    assert header == ["model", "domain", "temperature 1", "greedy", "best of 2"]
    assert rows == [
        ["agent-sft", "agent", "0.500", "", ""],
        ["agent", "agent", "0.900 (0.60 to 1.00)", "", "1.000"],
        ["unified-sft", "mean", "0.600", "", ""],
        ["unified", "mean", "0.800", "", ""],
    ]


def test_the_unified_model_has_a_gain_over_all_its_domains(record: RunRecord) -> None:
    """In `agent` from .25 to .75, in `general` from 0 to 1; each domain counts half."""
    gain = _report(record).gains["unified"]
    assert (gain.domain, gain.since, gain.by) == ("mean", "unified-sft", ["rl"])
    assert (gain.before, gain.after, gain.mean) == (0.125, 0.875, pytest.approx(0.75))
    assert (gain.problems, gain.unsolved, gain.newly_solved) == (3, 2, 0.75)
    html = page(record, _report(record), plan_post_train(record.recipe()))
    assert "mean over domains, since unified-sft" in html


def test_a_run_without_scores_says_so(record: RunRecord) -> None:
    empty = _report(record).model_copy(update={"scores": {}})
    assert "to evaluate nothing" in notes(empty, record.recipe())[0]
    going = empty.model_copy(update={"state": "running"})
    assert "no scores yet" in notes(going, record.recipe())[0]


def test_the_notes_say_which_demonstrators_err(record: RunRecord) -> None:
    recipe = load_recipe("cpu-smoke", ["experts.agent.domain.curriculum.options.noise=0"])
    assert "missing token: reasoning 30%, general 30%." in " ".join(notes(_report(record), recipe))
    assert not any("demonstrator" in n for n in notes(_report(record), load_recipe("cluster")))
    of_coding = _report(record).model_copy(update={"scores": {"base": {"coding": 0.0}}})
    coding = " ".join(notes(of_coding, load_recipe("coding-agent")))
    assert "token: coding 30%; these edit before the tests ran: coding 60%." in coding


def test_the_notes_of_one_expert_s_run_speak_of_no_other(record: RunRecord) -> None:
    alone = _report(record).model_copy(update={"scores": {"agent": {"agent": 0.5}}})
    said = " ".join(notes(alone, record.recipe()))
    assert "missing token: agent 30%." in said
    assert "by construction" not in said, "there is no unified model"


def test_each_flaw_of_a_curriculum_is_one_that_reports_know() -> None:
    classes = [resolve("curriculum", name, BUILT_IN) for name in BUILT_IN]
    known = {c.flaw for c in classes if isinstance(c, type) and issubclass(c, Procedural)} - {
        Procedural.flaw
    }
    assert {"noise", *known} == set(FLAWS)


@pytest.mark.parametrize("noise", ["pink", 0.3])
def test_an_option_called_noise_of_a_users_own_curriculum_means_what_it_likes(
    record: RunRecord, noise: object
) -> None:
    names = ("reasoning", "agent", "general")
    mine = f"{{name: 'mine:Problems', options: {{noise: {noise}}}}}"
    recipe = load_recipe("cpu-smoke", [f"experts.{n}.domain.curriculum={mine}" for n in names])
    assert not any("demonstrator" in note for note in notes(_report(record), recipe))


def test_artifacts_are_looked_for_where_the_latest_run_keeps_them(
    record: RunRecord, tmp_path: Path
) -> None:
    assert store_to_show().root == record.store.root
    elsewhere = [f"storage.root={tmp_path / 'elsewhere'}"]
    new_run(load_recipe("cpu-smoke", elsewhere), "post-train", {}, in_process=True)
    assert store_to_show().root == f"file://{tmp_path / 'elsewhere'}"
    assert store_to_show(str(tmp_path)).root == f"file://{tmp_path}"


def test_a_stage_that_scored_its_policy_on_the_way_is_shown_with_its_curve_and_timeline(
    record: RunRecord, tmp_path: Path
) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    point = ScorePoint(step=4, version=4, outcome=0.625, stderr=0.1, problems=8, wanted=8)
    curve = Curve(training={1: 0.5}, held_out={"agent": [point]})
    curve.write(folder)
    timeline = Timeline()
    timeline.add(TRAINER, "train", 100.0, 2.0, {"step": 1})
    write_trace(timeline, folder)
    made = ArtifactStore(record.store, tmp_path / "cache").commit(
        "rl", "a" * 64, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=3.0,
    )  # fmt: skip
    record.put_stage(
        StageRecord(name="agent-rl", kind="rl", state="completed", digest="a" * 64,
                    artifact=made.url, started=10.0)
    )  # fmt: skip
    report = _report(record)
    assert report.curves == {"agent-rl": curve}
    assert "| agent-rl | agent | 4: 0.625 | 0.625 ± 0.100 on 8 problems |" in markdown(report, [])
    text = page(record, report, plan_post_train(record.recipe()))
    assert "held out: agent" in text
    assert "Idle: trainer 0%, servers 100%" in text


def test_names_in_a_warning_are_shown_as_code_and_marks_of_others_as_text() -> None:
    said = with_code("raise `a<b`, or <c>: \x1b`")
    assert said == "raise <code>a&lt;b</code>, or &lt;c&gt;: \\x1b`"


def test_what_is_wrong_with_a_result_is_said_wherever_the_run_is_shown(
    record: RunRecord, tmp_path: Path
) -> None:
    folder = tmp_path / "trained"
    folder.mkdir()
    artifacts = ArtifactStore(record.store, tmp_path / "cache")
    warning = StageWarning(
        what="2 of 3 steps made no update", cause="all rewards were <equal>",
        advice="draw harder problems", figures={"steps": 3, "skipped": 2},
    )  # fmt: skip
    artifacts.commit(
        "rl", "a" * 64, 1, folder, identity={}, inputs={}, code={}, metrics={}, seeds={},
        mlflow_run_id="", seconds=3.0, warnings=[warning],
    )  # fmt: skip
    made = artifacts.find("rl", "a" * 64)
    assert made is not None
    assert made.warnings == [warning], "a cached stage has it too"
    record.put_stage(
        StageRecord(name="agent-rl", kind="rl", state="cached", digest="a" * 64,
                    artifact=made.url, warnings=made.warnings)
    )  # fmt: skip
    report, plan = _report(record), plan_post_train(record.recipe())
    line = "agent-rl: 2 of 3 steps made no update: all rewards were <equal>. Draw harder problems"
    assert report.model_dump()["warnings"] == {"agent-rl": [warning.model_dump()]}
    assert message_of(report) == f"WARNING, {line}; {result_of(report)}"
    text = markdown(report, [])
    assert text.startswith(f"### {record.run}: completed with 1 warning in 12 s\n\n#### Warnings")
    assert f"- **{markdown_text(line)}**" in text
    console = Console(record=True, width=300, file=StringIO())
    show_end(record, plan, console)
    shown = console.export_text()
    assert f"warning: {line}" in shown
    assert f"try it: tributary chat {record.run}/unified-rl" in shown
    html = page(record, report, plan)
    assert "all rewards were &lt;equal&gt;" in html
    assert html.index('id="warnings"') < html.index('id="river"')


def test_a_cell_without_a_verdict_is_no_score_of_zero(record: RunRecord) -> None:
    lacking = {"m": {"b": "reward 'x' raised KeyError: 'answer' (8 of 8)"}}
    header, rows = score_table({"n": {"a": 0.5, "b": 0.25}, "m": {"a": 0.5}}, lacking)
    assert (header, rows) == (
        ["model", "a", "b", "mean"],
        [["n", "0.500", "0.250", "0.375"], ["m", "0.500", "no verdict", ""]],
    )
    report = _report(record).model_copy(
        update={"no_verdict": {"base": {"web": "it raised KeyError"}}}
    )
    html = page(record, report, plan_post_train(record.recipe()))
    assert 'title="it raised KeyError">no verdict' in html


def test_the_markdown_holds_scores_and_stages(record: RunRecord) -> None:
    text = markdown(_report(record), ["a note"])
    assert "**It is not sure that RL changed agent: +37.5 points, p = 0.250; unified keeps" in text
    assert "| unified | 0.800 | 0.900 | 0.700 | 0.800 |" in text
    assert "| evaluate | evaluate | eeeeeeeeeeee | 3.2 s |" in text


def test_a_run_that_goes_on_is_reported_with_the_time_so_far(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.reports.report.time.time", lambda: 105.0)
    record.put_state(RunState(state="running", started=100.0, seconds=60.0))
    record.put_stage(
        StageRecord(name="agent-rl", kind="rl", state="running", started=102.0, seconds=1.0)
    )
    report = _report(record)
    assert report.seconds == 65.0
    assert {s.name: s.seconds for s in report.stages}["agent-rl"] == 4.0


def test_a_resumed_run_does_not_count_the_time_between(record: RunRecord) -> None:
    record.put_state(RunState(state="stopped", started=100.0, seconds=60.0))
    with recorded(record, {}):
        going = record.state()
    assert going.seconds_at(time.time()) < 65
    assert 60 <= record.state().seconds < 65
