"""Test-time scaling: what a budget of samples or turns buys, by hand and against smaller runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.rollout.drivers.driver import Conversation, LiveDomain
from engines.rollout.records.gallery import Gallery
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.sample_only import KeptRollouts
from engines.types import AssistantTurn, Message, Problem, Sampling, Step
from flows.reports.charts import scaling_charts
from tasks.evaluate.cells import Cell, CellResult, roll_cells
from tasks.evaluate.score_statistics import Scaling, budgets, by_samples, by_turns
from tasks.evaluate.score_tables import scaling_of, scores_of
from tests.parts.rollout_parts import CharChat, Counting, Judge, Policy, roller
from tests.parts.stage_parts import stage_context

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(0, []), (1, []), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (9, [1, 2, 4, 8, 9])],
)
def test_budgets_double_up_to_the_highest(highest: int, expected: list[int]) -> None:
    assert budgets(highest) == expected


def test_the_score_by_samples_by_hand() -> None:
    """One problem is right once of 4 samples: 1 - C(3, k) / C(4, k) = 1/4, 1/2, 1. The other is
    half right twice: .5 (1 - C(2, k) / C(4, k)) = 1/4, 5/12, 1/2, and never solved."""
    points = by_samples([[1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]])
    assert [p.budget for p in points] == [1, 2, 4]
    assert [p.score for p in points] == pytest.approx([1 / 4, 11 / 24, 3 / 4])
    assert [p.solved for p in points] == pytest.approx([1 / 8, 1 / 4, 1 / 2])
    assert all(p.low < p.score < p.high for p in points)


def test_one_problem_s_failed_verdicts_leave_the_curve_of_the_others() -> None:
    """Each point is over the problems with so many verdicts, as the best of k is."""
    points = by_samples([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, None, None], [1.0, *[None] * 3]])
    assert [p.budget for p in points] == [1, 2, 4]
    # 1: (1/4 + 1/2 + 1) / 3; 2: (1/2 + 1) / 2; 4: 1
    assert [p.score for p in points] == pytest.approx([7 / 12, 3 / 4, 1])
    assert [p.solved for p in points] == pytest.approx([7 / 12, 3 / 4, 1])
    assert [p.budget for p in by_samples([[1.0] * 4, [0.0] * 2])] == [1, 2, 4]
    assert by_samples([[1.0], [0.0]]) == by_samples([]) == []


def test_the_score_by_turns_by_hand() -> None:
    outcomes, turns = [[1.0, 0.0], [1.0, 0.5]], [[1, 3], [2, 4]]
    points = by_turns(outcomes, turns, 4)
    # 1 turn: (1/2 + 0) / 2; 2 turns: (1/2 + 1/2) / 2; 4 turns: (1/2 + 3/4) / 2
    assert [(p.budget, p.score) for p in points] == [(1, 0.25), (2, 0.5), (4, 0.625)]
    assert [p.solved for p in points] == [0.25, 0.5, 0.5]
    assert by_turns(outcomes, turns, 1) == []


class Stairs(Counting):
    """Problem n says `n`, and is over after a turn without a call."""

    def demonstrations(self, count: int, seed: int) -> list[Any]:
        return []

    def environment(self) -> Stairs:
        return self

    async def start(self, problem: Problem) -> Stairs:
        return self

    async def step(self, turn: AssistantTurn) -> Step:
        return Step((Message("tool", "on"),)) if turn.tool_calls else Step(done=True)

    async def close(self) -> None: ...


def _climbs(prompt: str, sampling: Sampling) -> str:
    """Calls as often as the problem and the seed say, then answers; some rollouts break."""
    assert sampling.seed is not None
    wanted = int(prompt[1]) + sampling.seed % 3
    if prompt.count("[on]") < wanted:
        return "?" if wanted == 4 else "!go"
    return str(sampling.seed % 2)


def _stairs(limit: int) -> LiveDomain:
    stairs = Stairs("a")
    driver = Conversation(stairs, limit)
    return LiveDomain("a", stairs, Judge(lambda answer: float(answer == "1")), driver, 200)


class _CutJudge(Judge):
    """As a rubric: who ran out of turns is not asked."""

    async def judge(self, transcript: Any) -> Any:
        judged = await super().judge(transcript)
        ran_out = transcript.status == "truncated"
        return replace(judged, breakdown={"outcome": 0.0}) if ran_out else judged


async def _rolled(root: Path, limit: int) -> CellResult:
    live = replace(_stairs(limit), judge=_CutJudge(lambda answer: float(answer == "1")))
    cell = Cell("m", live, live.curriculum.problems("heldout", 6, 0), 4, "score", limit)
    journal = RolloutJournal(stage_context(root, f"e{limit}", {}).checkpoints)
    kept = await KeptRollouts.open(journal, 0)
    (result,) = await roll_cells(roller(Policy(_climbs)), [cell], kept, Gallery(CharChat()))
    return result


async def test_finished_rollouts_give_the_scores_of_lower_limits_exactly(tmp_path: Path) -> None:
    """Each limit is also really run."""
    longest = await _rolled(tmp_path, 8)
    points = by_turns(longest.outcomes, longest.turns, longest.most_turns)
    assert [p.budget for p in points] == [1, 2, 4, 8]
    assert len({p.score for p in points}) > 2
    for point in points:
        assert (await _rolled(tmp_path, point.budget)).score == pytest.approx(point.score)


def result(model: str, outcomes: Any, turns: Any = (), most: int = 0) -> CellResult:
    return CellResult(
        model, "a", "score", 0.5, 0.1, 4, 9, 0.0, 0.0, 0.0, "", outcomes, turns, most
    )  # fmt: skip


def test_the_curves_are_in_the_scores_in_mlflow_and_in_the_page() -> None:
    results = [result("m", [[1.0, 0.0]], [[1, 2]], 2), result("n", [[1.0]])]
    written = scores_of(results)["scaling"]
    scaling = Scaling.model_validate(written)
    assert scaling == scaling_of(results)
    assert {by: list(written[by]) for by in written} == {"samples": ["m"], "turns": ["m"]}
    assert scaling.metrics() == {
        budget: {
            "scaling/samples/m/a": score,
            "scaling/samples-solved/m/a": score,
            "scaling/turns/m/a": 0.5,
            "scaling/turns-solved/m/a": 0.5,
        }
        for budget, score in ((1, 0.5), (2, 1.0))
    }
    samples, turns = scaling_charts(scaling)["a"]
    assert (samples["unit"], turns["unit"]) == ("samples", "turns")
    (line,) = samples["lines"]
    assert line["name"] == "m"
    assert [point[:2] for point in line["points"]] == [[1, 0.5], [2, 1.0]]


def test_partly_right_answers_have_a_line_of_those_that_are_solved() -> None:
    (samples,) = scaling_charts(scaling_of([result("m", [[0.5, 1.0]])]))["a"]
    assert [line["name"] for line in samples["lines"]] == ["m", "m, solved"]
    assert samples["lines"][1]["points"] == [[1, 0.5], [2, 1.0]]


def test_a_driver_that_is_no_conversation_has_no_curve_over_turns() -> None:
    assert scaling_of([result("m", [[1.0, 0.0]], [[1, 2]])]).turns == {}
