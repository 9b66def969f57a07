"""Which round becomes the best one, and when a series ends; intervals worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.load import load_recipe
from flows.plan import PlannedStage
from flows.post_train import (
    Round,
    best_of_rounds,
    judge,
    plan_distill_rounds,
    rounds_in,
    table_of_rounds,
    why_over,
)
from flows.recipe import RoundsSettings
from flows.reports.paired_tests import problem_outcomes

pytestmark = pytest.mark.unit

FIRST = [0.0, 0.5, 0.5, 1.0] * 4
BETTER = [0.5, 1.0, 1.0, 1.0] * 4
"""gains .5, .5, .5, 0, four times: mean .375. The interval: n = 18, 6 / 18 = .33333, variance
4 / 18 - .11111 = .11111, half 1.959964 x sqrt(.11111 / 18) = .15399"""
MIXED = [1.0, 1.0, 0.0, 1.0] * 4
"""gains 1, .5, -.5, 0 over FIRST, four times: 4 / 18 - 1.959964 x sqrt(.33951 / 18) = -.04696"""


def last(rounds: int) -> list[PlannedStage]:
    return rounds_in(plan_distill_rounds(load_recipe("cpu-smoke"), "agent", rounds), "agent")


def judged(*outcomes: list[float], **settings: object) -> list[Round]:
    stages = last(len(outcomes) - 1)
    named = {stage.scored_as: values for stage, values in zip(stages, outcomes, strict=True)}
    return judge(stages, named, RoundsSettings.model_validate(settings))


def test_a_round_ends_with_its_last_model() -> None:
    assert [stage.name for stage in last(2)] == ["agent-rl", "agent-rl-2", "agent-rl-3"]
    assert [stage.scored_as for stage in last(2)] == ["agent-rl", "agent-rl-2", "agent"]


@pytest.mark.parametrize("admits", [[], [{"admit": {"problems": {"rl": 8, "distill": 256}}}]])
def test_a_path_that_begins_with_a_round_is_compared_with_the_base(admits: list[Any]) -> None:
    recipe = load_recipe("cpu-smoke")
    path = recipe.model_dump(mode="json")["experts"]["agent"]["path"]
    changed = json.dumps([*admits, "distill", *path])
    recipe = load_recipe("cpu-smoke", [f"experts.agent.path={changed}"])

    def end_of_series(rounds: int) -> str:
        stages = rounds_in(plan_distill_rounds(recipe, "agent", rounds), "agent")
        assert stages[0].name == "base"
        named = dict.fromkeys(["base", *(stage.scored_as for stage in stages[1:])], FIRST)
        settings = RoundsSettings(most=2)
        found = judge(stages, named, settings)
        assert [each.number for each in found] == list(range(rounds + 1))
        assert found[0].model == "base"
        return why_over(found, settings)

    assert end_of_series(1) == ""
    assert "2 rounds are done, and `rounds.most` is 2" in end_of_series(2)


def test_a_round_is_promoted_if_its_gain_is_surely_above_the_margin() -> None:
    first, second = judged(FIRST, BETTER)
    assert (first.promoted, first.over) == (True, "")
    assert (second.over, second.gain) == ("agent-rl", 0.375)
    assert second.gain_low == pytest.approx(0.33333 - 0.15399, abs=1e-5)
    assert second.promoted
    assert not judged(FIRST, BETTER, margin=0.18)[1].promoted
    assert not judged(FIRST, MIXED)[1].promoted


def test_a_higher_mean_is_enough_where_the_recipe_says_so() -> None:
    assert judged(FIRST, MIXED, promote="higher")[1].promoted
    assert not judged(FIRST, MIXED, promote="higher", margin=0.25)[1].promoted, "above, not at"


def test_a_round_is_compared_with_the_best_one_and_not_with_the_last() -> None:
    rounds = judged(BETTER, FIRST, BETTER)
    assert [found.promoted for found in rounds] == [True, False, False]
    assert rounds[2].over == "agent-rl"
    assert best_of_rounds(rounds) == rounds[0]


def test_a_round_without_scores_is_not_judged_yet() -> None:
    stages = last(2)
    assert [r.number for r in judge(stages, {"agent-rl": FIRST}, RoundsSettings())] == [0]
    assert judge(stages, {}, RoundsSettings()) == []
    assert best_of_rounds([]) is None


@pytest.mark.parametrize(
    ("outcomes", "settings", "why"),
    [
        ([FIRST, BETTER], {}, ""),
        ([BETTER, FIRST], {}, ""),
        (
            [BETTER, FIRST, FIRST],
            {},
            "2 rounds was surely better than round 0 (0.875)",
        ),
        ([FIRST, BETTER, FIRST], {}, ""),
        ([FIRST, FIRST], {"patience": 1}, "`rounds.patience` is 1"),
        ([FIRST, BETTER], {"most": 1}, "1 rounds are done, and `rounds.most` is 1"),
        ([FIRST], {"target": 0.5}, "round 0 reached 0.500, and `rounds.target` is 0.5"),
        ([FIRST], {"target": 0.51}, ""),
    ],
)
def test_a_series_ends_by_its_rule(
    outcomes: list[list[float]], settings: dict[str, object], why: str
) -> None:
    said = why_over(judged(*outcomes, **settings), RoundsSettings.model_validate(settings))
    assert why in said
    assert bool(said) == bool(why)


def test_outcomes_are_means_by_problem_of_the_sampled_scores() -> None:
    cell = {"model": "agent", "domain": "agent", "kind": "score", "outcomes": [[0, 1], [1, 1]]}
    others = [{**cell, "kind": "greedy", "outcomes": [[0]]}, {**cell, "domain": "general"}]
    found = problem_outcomes({"cells": [*others, cell]})
    assert found == {("agent", "agent"): [0.5, 1.0], ("agent", "general"): [0.5, 1.0]}
    assert problem_outcomes({}) == {}


def test_the_table_shows_the_curve_and_the_best() -> None:
    header, rows = table_of_rounds(judged(FIRST, BETTER, FIRST))
    assert header[0] == "round"
    assert [row[-1] for row in rows] == ["promoted", "@best", "not promoted"]
    assert rows[1][3].startswith("+0.375 (+0.179 to +0.487) over agent-rl")
