"""What a run and its stages say of themselves in MLflow."""

from __future__ import annotations

import json

import pytest

from flows.load import load_recipe
from flows.post_train import plan_post_train
from flows.reports.outcome import Best, ScoreCell
from flows.running.mlflow_notes import Source, datasets_of, run_note, stage_note
from infra.store.artifacts import ArtifactRecord

pytestmark = pytest.mark.unit

PLAN = {stage.name: stage for stage in plan_post_train(load_recipe("cpu-smoke"))}
LINKS = {"Prefect run": "http://prefect/1", "report": "file:///home/reports/r.html"}


def test_the_best_model_of_each_domain_is_on_the_first_line() -> None:
    scores = {"base": {"a": 0.0, "b": 0.0}, "x": {"a": 0.5, "b": 0.0}, "y": {"a": 0.25}}
    best = [Best("a", "x", ScoreCell(0.5)), Best("b", "", ScoreCell(0.0))]
    first, _, rest = run_note("[r](http://m/r)", scores, LINKS, best).partition("\n\n")
    said = "a: x 0.500; b: no model scored above 0"
    assert first == f"Highest scores: {said} (run [r](http://m/r))"
    assert "| x | **0.500** | 0.000 |" in rest
    assert "| y | 0.250 |  |" in rest
    assert "[Prefect run](http://prefect/1) · `file:///home/reports/r.html`" in rest
    assert run_note("", {}, {}) == "No scores yet"
    tasks = run_note("", {"x": {"wikitext word_perplexity": 11.0}}, {})
    assert tasks.startswith("Scores\n")
    assert "**" not in tasks, "less may be better"


def test_a_stage_says_its_outcome_first_then_its_sources_and_where_to_read_on() -> None:
    made = ArtifactRecord(
        kind="rl", digest="d", url="file:///s/a1", metrics={"outcome_last": 0.75, "mfu": 0.1}
    )
    sources = {"model": Source("agent-sft", "http://m/sft")}
    note = stage_note("run-1", PLAN["agent-rl"], sources, LINKS, made, "http://m/origin")
    assert note.startswith("| outcome |  |\n| --- | --- |\n| outcome_last | 0.75 |\n\n")
    for row in (
        "| model | [agent-sft](http://m/sft) |",
        "| makes | a version of agent |",
        "| artifact | `file:///s/a1` |",
        "| made by | [another run](http://m/origin) |",
        "| Prefect run | [Prefect run](http://prefect/1) |",
        "| log | `tributary logs run-1 agent-rl` |",
    ):
        assert row in note
    assert "mfu" not in note
    begun = stage_note("run-1", PLAN["agent-rl"], sources, LINKS)
    assert begun.startswith("| from and to |")
    assert "artifact" not in begun


def test_the_problems_that_a_stage_draws_are_its_datasets() -> None:
    (drawn,) = datasets_of(PLAN["agent-rl"])
    assert (drawn.name, drawn.context) == ("agent problems, rl", "training")
    assert drawn.rows == PLAN["agent-rl"].spec.most_problems
    assert json.loads(drawn.source)["curriculum"]["name"] == "agent"
    scored = list(datasets_of(PLAN["evaluate"]))
    assert {each.context for each in scored} == {"evaluation"}
    assert len({each.digest for each in scored}) == 3
    assert list(datasets_of(PLAN["base"])) == []
