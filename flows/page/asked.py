"""What a person asks a deployment for: a recipe by its name or in full, with changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.distill_rounds import written
from flows.load import (
    is_name,
    load_recipe,
    parse_lines,
    recipe_from_text,
    recipe_from_tree,
    recipe_names,
)
from flows.recipe import Recipe
from flows.running.records import RunHead
from infra.config import Config
from infra.errors import InputError

SEED_PATTERN = r"^[0-9]{0,18}$"


class Asked(Config):
    """Example: Asked(recipe="cpu-smoke", overrides="unified.path.rl.steps=4", seed="1")"""

    recipe: str | dict[str, Any]
    """a name, the YAML of a whole recipe, or its tree"""
    overrides: str = ""
    """changes of fields as lines `a.b=value`"""
    seed: str = Field(default="", pattern=SEED_PATTERN)
    """another seed; empty: the recipe's"""
    name: str = ""
    """of the run"""

    @property
    def by_name(self) -> dict[str, Any]:
        """As a flow run's parameters, if a name is asked for; else nothing."""
        if isinstance(self.recipe, str) and is_name(self.recipe):
            return self.model_dump(exclude_defaults=True)
        return {}

    def resolved(self) -> Recipe:
        """The recipe. Raises InputError with the text of `tributary check`."""
        changes = parse_lines(self.overrides)
        if self.seed:
            changes.append(f"seed={self.seed}")
        if isinstance(self.recipe, dict):
            return recipe_from_tree(self.recipe, changes)
        if not self.recipe.strip():
            raise InputError("recipe: choose one by its name, or give the whole recipe")
        if is_name(self.recipe):
            return load_recipe(self.recipe, changes)
        return recipe_from_text(self.recipe, changes)


def form_of(head: RunHead) -> dict[str, Any]:
    """The parameters of a flow run that works on a run: what a person would fill in."""
    arguments = written(head.arguments)
    if head.flow == "expert":
        arguments = {"expert": arguments.pop("name"), **arguments}
    if head.flow == "evaluate":
        arguments["models"] = "\n".join(f"{n}={f}" for n, f in arguments["models"].items())
    asked = head.asked if head.asked.get("recipe") in recipe_names() else {"recipe": head.recipe}
    return arguments | asked


def asked_by_command(recipe: str, changes: Sequence[str], name: str) -> dict[str, Any]:
    """What a form would say for a command's recipe; nothing for one that has no name there."""
    if recipe not in recipe_names() or Path(recipe).expanduser().is_file():
        return {}
    return Asked(recipe=recipe, overrides="\n".join(changes), name=name).by_name
