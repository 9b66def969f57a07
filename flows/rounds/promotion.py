"""Which round of a series is the best one, and whether the series is at its end.

The evaluation scores every version of the expert on the same held-out problems, so the verdict on
each round follows from the last evaluation alone and is the same whenever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows.distill_rounds import DISTILL, FLOW
from flows.plan import BASE, PlannedStage
from flows.recipe import Recipe
from flows.reports.paired_tests import paired, problem_outcomes
from flows.rounds.settings import RoundsSettings
from flows.running.records import RunHead
from infra.config import Config
from tasks.evaluate.statistics import interval, judged_in_both, mean

_BETTER = {"sure": "surely better", "higher": "better"}
"""by `rounds.promote`"""


class Round(Config):
    """A round as the evaluation saw it; outcomes are 0 to 1."""

    number: int
    """0 is the expert before its first round, or the base where nothing before that trains"""
    model: str
    """what scores call its last model"""
    stage: str
    """that made it"""
    score: float
    low: float
    high: float
    """95% interval of the score, over problems"""
    over: str = ""
    """the best model before it; empty for the first"""
    gain: float = 0.0
    gain_low: float = 0.0
    gain_high: float = 0.0
    """what it gained over that model, problem by problem, with the 95% interval of the mean"""
    promoted: bool = True


def rounds_of(
    head: RunHead, recipe: Recipe, plan: Sequence[PlannedStage], scores: Mapping[str, Any]
) -> list[Round]:
    """The rounds of a run, by the content of its `scores.json`; none for runs of other flows."""
    if head.flow != FLOW:
        return []
    return rounds_by(recipe, str(head.arguments["expert"]), plan, scores)


def rounds_by(
    recipe: Recipe, expert: str, plan: Sequence[PlannedStage], scores: Mapping[str, Any]
) -> list[Round]:
    domain = recipe.experts[expert].domain
    assert domain is not None, "rounds draw problems, so a plan of them has been refused"
    found = problem_outcomes(scores)
    outcomes = {model: own for (model, scored), own in found.items() if scored == domain.name}
    return judge(rounds_in(plan, expert), outcomes, recipe.rounds)


def rounds_in(plan: Sequence[PlannedStage], expert: str) -> list[PlannedStage]:
    """The stage of the newest model at the end of each round, by the round's number; 0 is before
    any round, where nothing but the base may be made."""
    ends = [stage for stage in plan if stage.name == BASE]
    for stage in plan:
        if stage.expert == expert:
            if stage.kind == DISTILL:
                ends.append(ends[-1])
            if stage.scored_as:
                ends[-1] = stage
    return ends


def judge(
    last: Sequence[PlannedStage],
    outcomes: Mapping[str, Sequence[float | None]],
    settings: RoundsSettings,
) -> list[Round]:
    """The rounds whose last models (`rounds_in`) were scored; outcomes are means by problem.

    Raises ValueError where two models answered different numbers of problems.
    """
    judged: list[Round] = []
    for number, stage in enumerate(last):
        model = stage.scored_as or stage.name
        own = outcomes.get(model)
        if own is None:
            break
        known = [value for value in own if value is not None]
        if not known:
            break
        low, high = interval(known)
        found = Round(
            number=number, model=model, stage=stage.name,
            score=mean(known), low=low, high=high,
        )  # fmt: skip
        best = best_of_rounds(judged)
        if best is not None:
            found = _compared(found, own, best, outcomes[best.model], settings)
        judged.append(found)
    return judged


def _compared(
    found: Round,
    own: Sequence[float | None],
    best: Round,
    others: Sequence[float | None],
    settings: RoundsSettings,
) -> Round:
    known = judged_in_both(others, own)
    if not known[0]:
        return found.model_copy(update={"over": best.model, "promoted": False})
    gain = paired(*known)
    measured = gain.difference if settings.promote == "higher" else gain.low
    return found.model_copy(
        update={
            "over": best.model,
            "gain": gain.difference,
            "gain_low": gain.low,
            "gain_high": gain.high,
            "promoted": measured > settings.margin,
        }
    )


def best_of_rounds(judged: Sequence[Round]) -> Round | None:
    """The one promoted last; None before the first evaluation."""
    return next((found for found in reversed(judged) if found.promoted), None)


def why_over(judged: Sequence[Round], settings: RoundsSettings) -> str:
    """Why the series is at its end, in a sentence; empty while it goes on."""
    best = best_of_rounds(judged)
    if best is None:
        return ""
    done = judged[-1].number
    if settings.target is not None and best.score >= settings.target:
        return (
            f"round {best.number} reached {best.score:.3f}, and `rounds.target` is"
            f" {settings.target:g}"
        )
    if settings.most is not None and done >= settings.most:
        return f"{done} rounds are done, and `rounds.most` is {settings.most}"
    if done - best.number >= settings.patience:
        better = _BETTER[settings.promote]
        return (
            f"none of the last {done - best.number} rounds was {better} than round {best.number}"
            f" ({best.score:.3f}), and `rounds.patience` is {settings.patience}"
        )
    return ""


def table_of_rounds(judged: Sequence[Round]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text: the curve of a series."""
    best = best_of_rounds(judged)
    rows = [
        [
            str(found.number),
            found.model,
            f"{found.score:.3f} ({found.low:.2f} to {found.high:.2f})",
            f"{found.gain:+.3f} ({found.gain_low:+.3f} to {found.gain_high:+.3f}) over {found.over}"
            if found.over
            else "",
            "@best" if found is best else "promoted" if found.promoted else "not promoted",
        ]
        for found in judged
    ]
    return ["round", "model", "outcome (95%)", "gain (95%)", "verdict"], rows
