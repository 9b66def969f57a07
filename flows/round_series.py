"""Goes on with a series of rounds from its newest round, unless an earlier run is still at it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flows.distill_rounds import (
    FLOW,
    Earlier,
    earlier_rounds,
    plan_distill_rounds,
    rounds_by,
    why_over,
)
from flows.plan import EVALUATE
from flows.recipe import Recipe
from flows.reports.report import read_scores
from flows.running.records import RunRecord, StageRecord, runs_of, store_of
from flows.running.run_lock import is_running

State = Literal["Skipped", "Over"]
_START_SECONDS = 300.0
"""what a run that is on record may take to be worked on: it may wait for its flow's process"""


class NotDue(Exception):
    """A trigger that has nothing to do; `state` is what Prefect's page calls it."""

    def __init__(self, state: State, why: str) -> None:
        super().__init__(why)
        self.state = state


@dataclass(frozen=True, slots=True)
class Due:
    """What a new run is to do."""

    arguments: Mapping[str, Any]
    """the flow's, in addition to the recipe"""
    stages: Sequence[StageRecord] = ()
    """of earlier runs, which it finds as these made them"""


def next_rounds(recipe: Recipe, arguments: Mapping[str, Any]) -> Due:
    """Those after the newest.

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
    return Due({**arguments, "after": earlier.rounds}, list(earlier.stages.values()))


def _running(recipe: Recipe, expert: str) -> str:
    """The run that works on this expert's rounds now, or is about to; empty if there is none."""
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        if is_running(record.run) or _is_about_to_start(record):
            head = record.head()
            if head.flow == FLOW and head.arguments["expert"] == expert:
                return record.run
    return ""


def _is_about_to_start(record: RunRecord) -> bool:
    age = time.time() - record.head().created
    return age < _START_SECONDS and record.state().state == "pending"


def _why_over(recipe: Recipe, expert: str, earlier: Earlier) -> str:
    if earlier.run is None:
        return ""
    scores = read_scores(earlier.run, earlier.run.stage(EVALUATE))
    plan = plan_distill_rounds(recipe, expert, earlier.rounds)
    return why_over(rounds_by(recipe, expert, plan, scores), recipe.rounds)
