"""Recipes that a person saved in this home, which everything finds by name.

$TRIBUTARY_HOME/recipes/<name>.yaml    a whole recipe: nothing in it depends on where it came from
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.differences import Difference, differences
from flows.explain import nearest
from flows.load import (
    SHIPPED,
    is_name,
    read_recipe,
    saved_folder,
    shipped_recipes,
    validate_recipe,
)
from flows.recipe import MAX_NAME
from infra.errors import InputError


@dataclass(frozen=True, slots=True)
class KnownRecipe:
    """A recipe with a name. Example: KnownRecipe("cpu-demo", True, Path(".../cpu-demo.yaml"))"""

    name: str
    is_shipped: bool
    file: Path


@dataclass(frozen=True, slots=True)
class Saved:
    """A recipe that has just been saved."""

    name: str
    file: Path
    is_new: bool
    """there was none of its name that could be read"""
    changed: list[Difference]
    """what differs from the one that it replaces"""


def known_recipes() -> list[KnownRecipe]:
    """The shipped ones, then the saved ones, each by name."""
    shipped = [KnownRecipe(name, True, SHIPPED / f"{name}.yaml") for name in shipped_recipes()]
    files = sorted(saved_folder().glob("*.yaml"))
    return shipped + [KnownRecipe(file.stem, False, file) for file in files]


def save_recipe(recipe: str, name: str = "", changes: Sequence[str] = ()) -> Saved:
    """Keep a recipe under a name (default: its own), which its runs then bear; one of that name is
    replaced. Raises InputError for a recipe that cannot run, and for a shipped one's name."""
    path, written = read_recipe(recipe, [*changes, *([f"name={name}"] if name else [])])
    known = validate_recipe(written.data, str(path), written)
    _require_free(known.name)
    file = saved_folder() / f"{known.name}.yaml"
    before = _saved_before(file)
    changed = [] if before is None else list(differences(before, written.data))
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")  # a flow may read it at any moment
    draft.write_text(yaml.safe_dump(written.data, sort_keys=False, allow_unicode=True))
    draft.replace(file)
    return Saved(known.name, file, before is None, changed)


def _saved_before(file: Path) -> dict[str, Any] | None:
    """None where there is none, or one that nobody can run any more."""
    try:
        return read_recipe(str(file))[1].data if file.exists() else None
    except InputError:
        return None


def remove_recipe(name: str) -> Path:
    """Forget a saved recipe; its runs stay. Raises InputError."""
    file = saved_folder() / f"{name}.yaml"
    if name in shipped_recipes():
        raise InputError(f"recipe {name} is shipped with Tributary and cannot be removed")
    if not is_name(name) or not file.is_file():
        saved = [known.name for known in known_recipes() if not known.is_shipped]
        found = ", ".join(saved) or "none"
        raise InputError(f"no saved recipe `{name}`; saved: {found}{nearest(name, saved)}")
    file.unlink()
    return file


def _require_free(name: str) -> None:
    if name in shipped_recipes():
        raise InputError(
            f"`{name}` is the name of a shipped recipe; give yours another one of at most"
            f" {MAX_NAME} characters: tributary save RECIPE NAME"
        )
