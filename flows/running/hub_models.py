"""The models of a hub that a run imports: each at one commit, from its record on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.recipe import Recipe
from infra.hub import hub_name, is_hub_name, pinned

_MODELS = "models"
"""the argument of a flow that names folders to import"""


def pinned_recipe(recipe: Recipe) -> Recipe:
    """With the commit of its base. Raises InputError, StorageError as `infra.hub.pinned` does."""
    folder = recipe.base.folder
    return recipe if folder is None else _with_base(recipe, _pinned(folder))


def pinned_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same for models that a flow compares."""
    models = arguments.get(_MODELS)
    if not isinstance(models, Mapping):
        return dict(arguments)
    return {**arguments, _MODELS: {name: _pinned(str(folder)) for name, folder in models.items()}}


def recipe_as_on_record(recipe: Recipe, recorded: Recipe) -> Recipe:
    """`recipe` with the commit of a run on record, where both name the same model and this one
    leaves the commit open."""
    now, then = recipe.base.folder, recorded.base.folder
    return _with_base(recipe, _as_on_record(now, then)) if now and then else recipe


def arguments_as_on_record(
    arguments: Mapping[str, Any], recorded: Mapping[str, Any]
) -> dict[str, Any]:
    """The same for models that a flow compares."""
    now, then = arguments.get(_MODELS), recorded.get(_MODELS)
    if not (isinstance(now, Mapping) and isinstance(then, Mapping)):
        return dict(arguments)
    models = {name: _as_on_record(str(f), str(then.get(name, ""))) for name, f in now.items()}
    return {**arguments, _MODELS: models}


def _as_on_record(now: str, then: str) -> str:
    if not (is_hub_name(now) and is_hub_name(then)) or hub_name(now).is_pinned:
        return now
    return then if hub_name(now).repo == hub_name(then).repo else now


def _pinned(folder: str) -> str:
    return pinned(folder) if is_hub_name(folder) else folder


def _with_base(recipe: Recipe, folder: str) -> Recipe:
    base = recipe.base.model_copy(update={"folder": folder})
    return recipe.model_copy(update={"base": base})
