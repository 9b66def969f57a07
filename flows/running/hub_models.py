"""The models of a hub that a run imports: each at one commit, from its record on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flows.recipe import Recipe
from infra.hub import hub_name, is_hub_name, pinned
from tasks.domain import RewardTerm
from tasks.served.roles import role_name

_MODELS = "models"
"""the argument of a flow that names folders to import"""


def pinned_recipe(recipe: Recipe) -> Recipe:
    """With the commits of its base and of the models that its rewards ask. Raises InputError,
    StorageError as `infra.hub.pinned` does."""
    folder = recipe.base.folder
    recipe = recipe if folder is None else _with_base(recipe, _pinned(folder))
    return _with_served(recipe, lambda _, model: _pinned(model))


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
    recipe = _with_base(recipe, _as_on_record(now, then)) if now and then else recipe
    known = {role_name(term): term.served.model for _, term in _asking(recorded) if term.served}
    return _with_served(recipe, lambda role, model: _as_on_record(model, known.get(role, "")))


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


def _asking(recipe: Recipe) -> Iterator[tuple[str, RewardTerm]]:
    """Every reward that asks a model, with its expert."""
    for name, expert in recipe.experts.items():
        for term in expert.domain.rewards if expert.domain is not None else ():
            if term.served is not None:
                yield name, term


def _with_served(recipe: Recipe, model_of: Callable[[str, str], str]) -> Recipe:
    """With the models that `model_of(role, model)` gives."""
    experts = dict(recipe.experts)
    for name in dict.fromkeys(expert for expert, _ in _asking(recipe)):
        domain = experts[name].domain
        assert domain is not None
        rewards = [_with_model(term, model_of) for term in domain.rewards]
        changed = domain.model_copy(update={"rewards": rewards})
        experts[name] = experts[name].model_copy(update={"domain": changed})
    return recipe.model_copy(update={"experts": experts})


def _with_model(term: RewardTerm, model_of: Callable[[str, str], str]) -> RewardTerm:
    if term.served is None:
        return term
    model = model_of(role_name(term), term.served.model)
    return term.model_copy(update={"served": term.served.model_copy(update={"model": model})})
