"""One side of a comparison: a recipe as it would run now, or a run as it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flows.catalog import plan_of
from flows.explain import nearest
from flows.load import is_recipe, load_recipe, set_field, shipped_recipes, validate_recipe
from flows.plan import PlannedStage
from flows.planned_digests import planned_identities
from flows.reasons import DELETED, identity_of
from flows.recipe import Recipe
from flows.running.records import RunRecord, find_run, has_run, run_entries
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactStore
from infra.user_files import install_hooks, read_hooks
from tasks.durable.identity import StageIdentity

POST_TRAIN = "post-train"


@dataclass(frozen=True, slots=True)
class Side:
    """Example: Side("cpu-demo", {"name": "cpu-demo", ...}, [base, ...], {"base": ...})"""

    name: str
    """as a person named it"""
    settings: Mapping[str, Any]
    """the whole recipe with its defaults, and which flow runs it"""
    plan: Sequence[PlannedStage]
    identities: Mapping[str, StageIdentity]
    """by stage"""
    unfinished: Mapping[str, str] = field(default_factory=dict[str, str])
    """stages of a run that made no result, and what became of them"""


def side_of(name: str, changes: Sequence[str], described: str) -> Side:
    """A recipe by file or shipped name, else a run by id or name. A run with changes is its recipe
    with these, as it would run now. `described` is what messages call the argument.

    Raises InputError for what is neither.
    """
    if is_recipe(name):
        return _of_recipe(name, load_recipe(name, changes), POST_TRAIN, {})
    if not has_run(name):
        known = [*shipped_recipes(), *(entry.name or entry.run for entry in run_entries())]
        raise InputError(
            f"{described} `{name}`: no such file, and neither a shipped recipe"
            f" ({', '.join(shipped_recipes())}) nor a run of this home (`tributary runs`)"
            f"{nearest(name, known)}"
        )
    record = find_run(name)
    if not changes:
        return _of_run(name, record)
    head = record.head()
    for change in changes:
        set_field(head.recipe, change)
    recipe = validate_recipe(head.recipe, f"run {record.run} with --set")
    return _of_recipe(name, recipe, head.flow, head.arguments)


def _of_recipe(name: str, recipe: Recipe, flow: str, arguments: Mapping[str, Any]) -> Side:
    plan = plan_of(flow, recipe, arguments)
    return Side(name, _settings(recipe, flow, arguments), plan, _present(recipe, plan))


def _of_run(name: str, record: RunRecord) -> Side:
    """Stages as they were made, under the code of that time; those that were not, as of now."""
    head, recipe = record.head(), record.recipe()
    side = _of_recipe(name, recipe, head.flow, head.arguments)
    identities, unfinished = dict(side.identities), dict[str, str]()
    artifacts, stages = ArtifactStore(record.store, home() / "cache"), record.stages()
    for planned in side.plan:
        known = stages.get(planned.name)
        if known is None or not known.is_done:
            unfinished[planned.name] = known.state if known else "not begun"
            continue
        manifest = artifacts.manifest(known.kind, known.digest)
        made = identity_of(manifest) if manifest else None
        if made is None:
            unfinished[planned.name] = DELETED
        else:
            identities[planned.name] = made
    return replace(side, identities=identities, unfinished=unfinished)


def _present(recipe: Recipe, plan: Sequence[PlannedStage]) -> dict[str, StageIdentity]:
    return planned_identities(plan, install_hooks(read_hooks(recipe.hooks, recipe.data)))


def _settings(recipe: Recipe, flow: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"flow": flow, "arguments": dict(arguments), **recipe.model_dump(mode="json")}
