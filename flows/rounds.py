"""Where a trigger of `distill-rounds` continues: after the newest round that this home finished.

A round is found by the run that made it. It counts as an earlier round of the same series if the
stages up to it have the same settings as in this recipe. Then the new run reuses their digests, so
that a change of our code does not train them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.plan import plan_distill_rounds
from flows.recipe import Recipe
from flows.running.records import DONE, RunRecord, StageRecord, runs_of, store_of
from tasks.stage import StageSpec

FLOW = "distill-rounds"
DERIVED = ("after",)
"""arguments that a run of it has on record and nobody writes"""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Finished rounds. Example: Earlier(2, {"base": StageRecord(...), ...})"""

    rounds: int = 0
    stages: Mapping[str, StageRecord] = field(default_factory=dict[str, StageRecord])
    """of the rounds and what comes before them, by name"""


def earlier_rounds(recipe: Recipe, expert: str) -> Earlier:
    """The most rounds of this expert that any run on record finished under these settings."""
    best = Earlier()
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        found = _finished(record, recipe, expert)
        if found.rounds > best.rounds:
            best = found
    return best


def take_over(record: RunRecord, earlier: Earlier) -> None:
    """Let a new run find the stages of earlier rounds as they are."""
    for stage in earlier.stages.values():
        record.put_stage(StageRecord(name=stage.name, kind=stage.kind, digest=stage.digest))


def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A run's arguments as the flow takes them."""
    return {name: value for name, value in arguments.items() if name not in DERIVED}


def _finished(record: RunRecord, recipe: Recipe, expert: str) -> Earlier:
    head = record.head()
    if head.flow != FLOW or head.arguments["expert"] != expert:
        return Earlier()
    stages = record.stages()
    rounds = 0
    while (last := stages.get(f"{expert}-rl-r{rounds + 1}")) and last.state in DONE:
        rounds += 1
    theirs, ours = (_specs(made, expert, rounds) for made in (record.recipe(), recipe))
    known = {name: stages[name] for name in ours if name in stages}
    return Earlier(rounds, known) if theirs == ours and len(known) == len(ours) else Earlier()


def _specs(recipe: Recipe, expert: str, rounds: int) -> dict[str, StageSpec]:
    """What the stages up to a round are made of; each reads the ones before it."""
    planned = plan_distill_rounds(recipe, expert, rounds)
    return {stage.name: stage.spec for stage in planned if stage.kind != "evaluate"}
