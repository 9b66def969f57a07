"""How to make a run again: its recipe, its versions, the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from flows.recipe import Recipe
from flows.reports.stage_view import StageView
from flows.running.chosen_stages import chosen_of
from flows.running.records import RunHead


@dataclass(frozen=True, slots=True)
class Origin:
    """What the artifacts of a run were made by."""

    recipe: str
    """YAML; fields at their default are left out"""
    seed: int
    commands: Sequence[str]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    is_dirty: bool = False
    """some stage was made with files that no commit has"""


def origin_of(head: RunHead, recipe: Recipe, views: Sequence[StageView]) -> Origin:
    made = [view.manifest for view in views if view.manifest is not None]
    newest = max(made, key=lambda manifest: manifest.created, default=None)
    code: Mapping[str, Any] = newest.code if newest else {}
    commit = str(code.get("commit") or "")
    written = recipe.model_dump(mode="json", exclude_defaults=True)
    versions = {"tributary": str(code.get("version", ""))} if newest else {}
    return Origin(
        recipe=yaml.safe_dump(written, sort_keys=False, allow_unicode=True),
        seed=recipe.seed,
        commands=_commands(head, recipe, commit),
        versions=versions | dict(newest.libraries if newest else {}),
        machine=newest.machine if newest else {},
        is_dirty=any(manifest.code.get("dirty") for manifest in made),
    )


def _commands(head: RunHead, recipe: Recipe, commit: str) -> list[str]:
    checkout = [f"git checkout {commit[:12]}", "make install"] if commit else ["make install"]
    file = f"{recipe.name}.yaml"
    given = head.arguments
    match head.flow:
        case "post-train":
            run = f"tributary run {file}{_of_stages(given)}"
        case "expert":
            run = f"tributary run {file} --expert {given['name']}{_of_stages(given)}"
        case "distill-rounds":
            rounds = int(given.get("after", 0)) + int(given["rounds"])  # of a home without any
            run = f"tributary rounds {file} --expert {given['expert']} --rounds {rounds}"
        case "replay":
            run = f"tributary replay {given['stage']} --run {head.run}"
        case _:  # `evaluate`, which has a form alone
            models = ", ".join(f"{name}={folder}" for name, folder in given["models"].items())
            run = f"tributary up  # then the form of `{head.flow}`: this recipe, models {models}"
    return [*checkout, run, f"tributary report {head.run} --open"]


def _of_stages(arguments: Mapping[str, Any]) -> str:
    """The options by which a run did some of its stages."""
    chosen = chosen_of(arguments)
    one = {"from": chosen.from_stage, "until": chosen.until_stage, "only": chosen.only_stage}
    options = [f" --{name} {stage}" for name, stage in one.items() if stage]
    options += [f" --force {stage}" for stage in chosen.force_stages]
    return "".join([*options, " --accept-code" if chosen.accept_code else ""])
