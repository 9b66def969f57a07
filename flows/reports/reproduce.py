"""How to make a run again: its recipe, its versions, the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from flows.recipe import Recipe
from flows.reports.stage_view import StageView
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
    match head.flow:
        case "post-train":
            run = [f"tributary run {file}"]
        case "expert":
            run = [f"tributary run {file} --expert {head.arguments['name']}"]
        case "replay":
            run = [f"tributary replay {head.arguments['stage']} --run {head.run}"]
        case _:
            given = "".join(f" --param {k}={v}" for k, v in head.arguments.items())
            run = [f"prefect deployment run {head.flow}/{head.flow}{given}  # and this recipe"]
    return [*checkout, *run, f"tributary report {head.run} --open"]
