"""Chooses which stages of its plan a run does: from one on, up to one, only one; which run again,
and which it must find in the store.

--until S   S and all that it is made from
--from S    S and all that is made from it; everything else that these need is in the store
--only S    both
--force S   S runs although the store has it
--accept-code  what other code of Tributary made is taken as it is
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from flows.explain import nearest, validated
from flows.plan import PlannedStage
from flows.reasons import stage_reasons
from flows.recipe import Recipe
from infra.config import Config
from infra.errors import InputError

ARGUMENT = "stages"
"""under which a flow has them"""
_WAY_OUT = "run the recipe without --from and --only: what is in the store does not run again"


class ChosenStages(Config):
    """The stages that are to run: all, unless a field says otherwise; names are those that
    `tributary check` lists."""

    from_stage: str = ""
    """begin with this stage: what does not depend on it must be in the store, and is not run"""
    until_stage: str = ""
    """end after this stage: nothing runs that it does not need"""
    only_stage: str = ""
    """run this stage alone: what it is made from must be in the store"""
    force_stages: list[str] = Field(default_factory=list)
    """run these although the store has their results; what depends on them runs again only if their
    results differ"""
    accept_code: bool = False
    """take what an earlier run of this recipe made with other code of Tributary (before an upgrade)
    as it is, where settings, inputs and your own files are the same; all else runs as usual"""

    @model_validator(mode="after")
    def _one_way(self) -> ChosenStages:
        if self.only_stage and (self.from_stage or self.until_stage):
            raise ValueError("only_stage says where to begin and to end; leave out the others")
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The choice as a flow and a run's record hold it; nothing where all stages are meant."""
        written = self.model_dump(exclude_defaults=True)
        return {ARGUMENT: written} if written else {}

    @property
    def begins(self) -> str:
        return self.only_stage or self.from_stage

    @property
    def ends(self) -> str:
        return self.only_stage or self.until_stage


def chosen_of(arguments: Mapping[str, Any]) -> ChosenStages:
    """Read the choice from a flow's arguments. Raises InputError."""
    return validated(ChosenStages, arguments.get(ARGUMENT, {}), f"{ARGUMENT}: ")


def narrowed(plan: list[PlannedStage], chosen: ChosenStages) -> list[PlannedStage]:
    """The stages that a run looks up or runs, in the plan's order. Raises InputError for a stage
    that the plan does not have."""
    stages = {stage.name: stage for stage in plan}
    begins = _known("--only" if chosen.only_stage else "--from", chosen.begins, stages)
    ends = _known("--until", chosen.ends, stages)
    run = set(stages)
    if ends:
        run &= needed_by([ends], stages)
    if begins:
        run &= made_from(begins, plan)
    if not run:
        raise InputError(f"--until {ends} does not come after --from {begins}: nothing would run")
    for name in chosen.force_stages:
        if _known("--force", name, stages) not in run:
            listed = ", ".join(stage.name for stage in plan if stage.name in run)
            raise InputError(f"--force {name}: this run does not do it; it does {listed}")
    kept = needed_by(run, stages)
    return [
        replace(
            stage,
            is_stored=stage.name not in run,
            again=stage.name in chosen.force_stages,
            accepts_code=chosen.accept_code and stage.name not in chosen.force_stages,
        )
        for stage in plan
        if stage.name in kept
    ]


def needed_by(names: Collection[str], stages: Mapping[str, PlannedStage]) -> set[str]:
    """These stages and all that they are made from."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += stages[name].inputs.values()
    return found


def made_from(name: str, plan: Sequence[PlannedStage]) -> set[str]:
    """The stage and all that is made from it."""
    found = {name}
    for stage in plan:  # each stands after its inputs
        if found & set(stage.inputs.values()):
            found.add(stage.name)
    return found


def _known(option: str, name: str, stages: Mapping[str, PlannedStage]) -> str:
    if name and name not in stages:
        raise InputError(
            f"{option} {name}: no such stage; there are {', '.join(stages)}{nearest(name, stages)}"
        )
    return name


def require_stored(recipe: Recipe, plan: Sequence[PlannedStage]) -> None:
    """Raises InputError that lists the stages which are not in the store, each with why."""
    if not any(stage.is_stored for stage in plan):
        return
    why = stage_reasons(recipe, list(plan))
    missing = [
        f"  {stage.name}: {', '.join(why[stage.name])}"
        for stage in plan
        if stage.is_stored and why[stage.name]
    ]
    if missing:
        lines = "\n".join(missing)
        raise InputError(
            f"recipe {recipe.name} cannot begin there: these stages come before and are not in"
            f" {recipe.storage.root}:\n{lines}\n{_WAY_OUT}"
        )


def not_stored(name: str) -> str:
    """Why a run does not go on."""
    return f"stage {name} is not in the store, and this run begins after it; {_WAY_OUT}"
