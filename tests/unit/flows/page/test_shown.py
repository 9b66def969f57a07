"""Names, tags and results by which a person tells runs apart."""

from __future__ import annotations

import pytest

from flows.load import load_recipe
from flows.reports.report import Gain, Report
from flows.running.finish import result_of, shown_name, shown_tags
from flows.running.records import RunHead
from tasks.durable.protocol import outcome_of

pytestmark = pytest.mark.unit

RECIPE = load_recipe("cpu-smoke", ["seed=1"]).model_dump(mode="json")


def _head(run: str, flow: str = "post-train", **arguments: object) -> RunHead:
    run = f"{run}-20260101-120000-ab12"
    return RunHead(run=run, flow=flow, arguments=arguments, recipe=RECIPE, created=0.0)


def test_a_runs_name_says_recipe_seed_and_the_name_given() -> None:
    assert shown_name(_head("cpu-smoke")) == "cpu-smoke seed 1"
    assert shown_name(_head("tuesday-2")) == "tuesday-2: cpu-smoke seed 1"
    assert shown_name(_head("cpu-smoke", "expert", name="agent")) == "cpu-smoke/agent seed 1"
    rounds = _head("cpu-smoke", "distill-rounds", expert="agent", rounds=1)
    assert shown_name(rounds) == "cpu-smoke/agent rounds seed 1"
    assert shown_name(_head("cpu-smoke", "evaluate", models={})) == "cpu-smoke evaluate seed 1"
    assert shown_tags(_head("tuesday")) == ["cpu-smoke", "seed 1", "tuesday"]
    assert shown_tags(_head("cpu-smoke"), True) == ["cpu-smoke", "seed 1", "with warnings"]


def _report(scores: dict[str, dict[str, float]], **more: object) -> Report:
    made = {"run": "r", "state": "completed", "seconds": 1.0, "stages": [], "greedy": {}}
    return Report.model_validate({**made, "scores": scores, **more})


def test_a_result_is_the_unified_models_mean_or_each_experts_own_score() -> None:
    scores = {"base": {"a": 0.0, "b": 0.1}, "x": {"a": 0.9, "b": 0.1}, "x-sft": {"a": 0.5}}
    assert result_of(_report({**scores, "unified": {"a": 0.8, "b": 0.92}})) == "unified 0.86"
    gain = Gain(domain="a", since="x-sft", before=0.5, after=0.9, mean=0.4, low=0.1, high=0.6)
    alone = _report(scores, versions={"x": ["x-sft", "x"]}, gains={"x": gain})
    assert result_of(alone) == "x 0.90"
    many = {f"m{i}": {"a": i / 10} for i in range(6)}
    assert result_of(_report(many)) == "m0 0.00, m1 0.10, m2 0.20, m3 0.30 and 2 more"
    assert result_of(_report({})) == "0 stages, none of them an evaluation"
    tasks = {"base": {"arc acc": 0.25}, "x": {"arc acc": 0.5, "gsm8k exact_match": 0.125}}
    by_tasks = _report({}, versions={"x": ["x-sft", "x"]}, tasks=tasks)
    assert result_of(by_tasks) == "x arc acc 0.50, x gsm8k exact_match 0.12"


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            {"steps": 9, "solved": 1, "outcome_first": 0.31, "outcome_last": 0.975},
            "solved at step 9 of 24: outcome 0.31 to 0.97",
        ),
        (
            {"steps": 24, "solved": 0, "outcome_first": 0.3, "outcome_last": 0.62},
            "outcome 0.30 to 0.62 in 24 steps",
        ),
        ({"steps": 150, "loss": 0.1234}, "loss 0.123 after 150 steps"),
        ({"rows": 77.0, "generated_tokens": 9.0}, "77 rows"),
        ({"parameters": 123456.0}, "123,456 parameters"),
        ({"tensors": 9, "tensors_differing": 0, "steps": 2}, "the same weights"),
        ({"tensors": 9, "tensors_differing": 2, "steps": 2}, "2 of 9 tensors differ"),
        (
            {"score/unified/a": 0.8, "score/unified/b": 0.9, "score/base/a": 0.1, "greedy/x/a": 1},
            "unified 0.85",
        ),
        ({"score/x/a": 0.2, "score/y/a": 0.4}, "y 0.40, x 0.20"),
        ({}, ""),
    ],
)
def test_a_stage_says_what_became_of_it(metrics: dict[str, float], said: str) -> None:
    assert outcome_of(metrics, 24) == said
