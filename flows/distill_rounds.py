"""Iterative self-distillation of one expert: its verified answers teach a fresh cold start.

    base -> the expert's path up to its first `distill` -> round 1 -> round 2 ... -> evaluate

A round is `distill` and what follows it up to the next. The rounds that the path holds come first,
and the last of them again for those after; a path without one gets `distill` and itself again.
Schedulable: each trigger continues from the newest round of the same settings, on problems that no
round used before. What promotes a round and what ends the series is in `rounds/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.expert import plan_expert
from flows.path import OPTIONS, PathStage
from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.running.records import DONE, RunRecord, StageRecord, runs_of, store_of, warn_once
from infra.errors import CorruptArtifact, DamagedRecord, InputError
from tasks.stage import StageSpec

FLOW = "distill-rounds"
DERIVED = ("after",)
"""arguments that a run of it has on record and nobody writes"""
ADMIT, DISTILL = "admit", "distill"


def plan_distill_rounds(recipe: Recipe, expert: str, rounds: int) -> list[PlannedStage]:
    """So many rounds in all, whatever the expert's path holds."""
    return plan_expert(recipe, expert, _path(recipe, expert, rounds))


def _path(recipe: Recipe, expert: str, rounds: int) -> list[PathStage]:
    first, *written = _split(recipe.experts[expert].path)
    template = written[-1] if written else [_distill_of(recipe), *first]
    harder = recipe.rounds.harder.get(expert, [])
    admits = [stage for part in (first, *written) for stage in part if stage.kind == ADMIT]
    added = [
        _at_level(template, harder[: number + 1][-1:], admits[-1:]) for number in range(rounds)
    ]
    wanted = [*written, *added][:rounds]
    return [*first, *(stage for one in wanted for stage in one)]


def _at_level(
    stages: Sequence[PathStage],
    options: Sequence[Mapping[str, Any]],
    admits: Sequence[PathStage],
) -> list[PathStage]:
    """A round whose curriculum has other options, if any are given. Where the expert's path admits
    problems, the other ones are admitted before the round draws any."""
    if not options:
        return list(stages)
    first, *others = [*admits, *(stage for stage in stages if stage.kind != ADMIT)]
    return [first.model_copy(update={OPTIONS: dict(options[0])}), *others]


def _split(path: list[PathStage]) -> list[list[PathStage]]:
    """What comes before the first round, and each round."""
    parts: list[list[PathStage]] = [[]]
    for stage in path:
        if stage.kind == DISTILL:
            parts.append([])
        parts[-1].append(stage)
    return parts


def _distill_of(recipe: Recipe) -> PathStage:
    """As the unified model's path says it; else by default."""
    path = recipe.unified.path if recipe.unified is not None else []
    found = [stage for stage in path if stage.kind == DISTILL]
    return found[0] if found else PathStage.model_validate({DISTILL: {}})


@dataclass(frozen=True, slots=True)
class Earlier:
    """Finished rounds. Example: Earlier(2, {"base": StageRecord(...), ...})"""

    rounds: int = 0
    stages: Mapping[str, StageRecord] = field(default_factory=dict[str, StageRecord])
    """of the rounds and what comes before them, by name"""
    run: RunRecord | None = None
    """the run that finished them"""


def earlier_rounds(recipe: Recipe, expert: str) -> Earlier:
    """The most rounds of this expert that any run on record finished under these settings.

    A new run reuses their digests, so that a change of our code does not train them again.
    """
    best = Earlier()
    for record in runs_of(recipe.name, store_of(recipe.storage)):
        try:
            found = _finished(record, recipe, expert)
        except (DamagedRecord, CorruptArtifact) as error:
            warn_once(f"run {record.run} is passed over: {error}")
            continue
        if found.rounds > best.rounds:
            best = found
    return best


def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A run's arguments as the flow takes them."""
    return {name: value for name, value in arguments.items() if name not in DERIVED}


def _finished(record: RunRecord, recipe: Recipe, expert: str) -> Earlier:
    """The rounds of one run whose stages, and those before them, have the same settings here."""
    head = record.head()
    if head.flow != FLOW or head.arguments["expert"] != expert:
        return Earlier()
    try:
        theirs = record.recipe()
    except InputError:  # of a version that wrote recipes in another way
        return Earlier()
    stages = record.stages()
    rounds = 0
    while _is_done(_specs(theirs, expert, rounds + 1), stages):
        rounds += 1
    ours = _specs(recipe, expert, rounds)
    known = {name: stages[name] for name in ours if name in stages}
    same = _specs(theirs, expert, rounds) == ours and len(known) == len(ours)
    return Earlier(rounds, known, record) if same else Earlier()


def _is_done(specs: Mapping[str, StageSpec], stages: Mapping[str, StageRecord]) -> bool:
    known = [stages.get(name) for name in specs]
    return all(stage is not None and stage.state in DONE for stage in known)


def _specs(recipe: Recipe, expert: str, rounds: int) -> dict[str, StageSpec]:
    """What the stages up to a round are made of; each reads the ones before it."""
    planned = plan_distill_rounds(recipe, expert, rounds)
    return {stage.name: stage.spec for stage in planned if stage.expert or not stage.inputs}
