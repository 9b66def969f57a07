"""What a trigger of `distill-rounds` does: it goes on from the newest round, unless an earlier
trigger is still at work or the series is at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flows.distill_rounds import FLOW, Earlier, earlier_rounds, plan_distill_rounds
from flows.plan import EVALUATE
from flows.recipe import Recipe
from flows.reports.report import read_scores
from flows.rounds.promotion import rounds_by, why_over
from flows.running.records import RunRecord, new_run, runs_of, store_of
from flows.running.run_lock import is_running

State = Literal["Skipped", "Over"]


class NotDue(Exception):
    """A trigger that has nothing to do; `state` is what Prefect's page calls it."""

    def __init__(self, state: State, why: str) -> None:
        super().__init__(why)
        self.state = state


def begin_rounds(
    recipe: Recipe,
    arguments: Mapping[str, Any],
    *,
    name: str = "",
    in_process: bool = False,
    asked: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Put a run on record that goes on from the newest round.

    Raises NotDue while an earlier trigger still works on this expert's rounds, and once the series
    is at its end.
    """
    expert = str(arguments["expert"])
    if running := _running(recipe, expert):
        raise NotDue(
            "Skipped",
            f"run {running} still works on the rounds of {expert}; the next trigger goes on from"
            " what it makes",
        )
    earlier = earlier_rounds(recipe, expert)
    if why := _why_over(recipe, expert, earlier):
        raise NotDue(
            "Over",
            f"the rounds of {expert} are at their end: {why}. Change `rounds` in the recipe to go"
            " on, or switch the schedule off",
        )
    found = {**arguments, "after": earlier.rounds}
    record = new_run(recipe, FLOW, found, name=name, in_process=in_process, asked=asked)
    record.take_over(earlier.stages.values())
    return record


def _running(recipe: Recipe, expert: str) -> str:
    """The run that works on this expert's rounds now; empty if there is none."""
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        if is_running(record.run):
            head = record.head()
            if head.flow == FLOW and head.arguments["expert"] == expert:
                return record.run
    return ""


def _why_over(recipe: Recipe, expert: str, earlier: Earlier) -> str:
    if earlier.run is None:
        return ""
    scores = read_scores(earlier.run, earlier.run.stage(EVALUATE))
    plan = plan_distill_rounds(recipe, expert, earlier.rounds)
    return why_over(rounds_by(recipe, expert, plan, scores), recipe.rounds)
