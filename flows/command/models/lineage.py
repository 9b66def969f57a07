"""What an artifact was made from, back to its base, and which run's scores are about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.catalog import plan_of
from flows.command.find_artifact import NamedModel
from flows.recipe import Recipe
from flows.reports.report import build_report
from flows.running.records import RunRecord, find_run, run_entries, store_of
from infra.errors import TributaryError
from infra.hub import is_hub_name
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest

_FILES = ("hooks", "data", "files")
"""fields of a recipe that list files"""
_SERVED = "served.model"
_FOLDERS = ("folder", _SERVED)
"""fields that name a model, a stage or a folder; a name without a `/` is its own last part"""
_SERVERS = ("external",)
"""fields of a recipe that list addresses"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The stage of a run that made an artifact, or found it made."""

    run: str
    stage: str
    recipe: Mapping[str, Any]
    """what its author wrote, without defaults and without where it ran"""
    scored_as: str = ""
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """by domain: mean outcome at temperature 1"""
    greedy: Mapping[str, float] = field(default_factory=dict[str, float])
    intervals: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    """95% intervals of `scores`"""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """An artifact of the lineage; `manifest` is None where the store does not have it any more."""

    digest: str
    role: str
    """what it was to the one made from it: `model`, a teacher's name, ...; empty: itself"""
    manifest: Manifest | None


def lineage_of(artifacts: ArtifactStore, kind: str, digest: str) -> list[Ancestor]:
    """The artifact itself first, then what it was made from, each once."""
    kinds = {short: of_kind for of_kind, short in artifacts.names()}
    found: dict[str, Ancestor] = {}
    ahead = [("", kind, digest)]
    while ahead:
        role, of_kind, wanted = ahead.pop(0)
        if wanted in found:
            continue
        manifest = artifacts.manifest(of_kind, wanted) if of_kind else None
        found[wanted] = Ancestor(wanted, role, manifest)
        inputs = manifest.inputs if manifest else {}
        ahead += [(role, kinds.get(digest[:12], ""), digest) for role, digest in inputs.items()]
    return list(found.values())


def origin_of(model: NamedModel) -> Origin | None:
    """The run that is named, if a run was, else the newest one of this home that has the artifact;
    None where there is none."""
    if model.record is None or model.artifacts is None:
        return None
    for record in _runs(model.name, model.artifacts.store.root):
        try:
            stages = record.stages().values()
        except TributaryError:
            continue
        for stage in stages:
            if stage.digest == model.record.digest:
                return _origin(record, stage.name)
    return None


def _runs(name: str, root: str) -> Iterator[RunRecord]:
    run = name.rpartition("/")[0]
    entries = run_entries()
    if run and any(entry.is_called(run) for entry in entries):
        yield find_run(run)
    for entry in entries:
        try:
            store = store_of(entry.storage)
            record = RunRecord(store, entry.run)
            is_there = store.root == root and record.exists
        except TributaryError:  # another store may be out of reach
            continue
        if is_there:
            yield record


def _origin(record: RunRecord, stage: str) -> Origin:
    head = record.head()
    plan = plan_of(head.flow, record.recipe(), head.arguments)
    recipe = recipe_for_strangers(record.recipe())
    planned = next((p for p in plan if p.name == stage), None)
    scored_as = planned.scored_as or stage if planned else stage
    try:
        report = build_report(record, plan)
    except TributaryError:  # its evaluation is gone: the model is still a model
        return Origin(head.run, stage, recipe, scored_as)
    return Origin(
        head.run,
        stage,
        recipe,
        scored_as,
        report.scores.get(scored_as, {}),
        report.greedy.get(scored_as, {}),
        report.intervals.get("scores", {}).get(scored_as, {}),
    )


def recipe_for_strangers(recipe: Recipe) -> dict[str, Any]:
    """What its author wrote, without paths and addresses of the machines that it ran on: those are
    their owner's business."""
    where = {"storage", "tracking", "resources"}
    return _without_places(recipe.model_dump(mode="json", exclude_defaults=True, exclude=where))


def _without_places(value: Any, field: str = "") -> Any:
    """Of the user's own files and folders the names alone, of servers nothing."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _SERVERS}
        return {
            key: _without_places(item, _SERVED if (field, key) == ("served", "model") else key)
            for key, item in kept.items()
        }
    if isinstance(value, list):
        return [_without_places(each, field) for each in value]
    if not isinstance(value, str):
        return value
    is_folder = field in _FOLDERS and not is_hub_name(value)
    return _last_part(value) if is_folder or field in _FILES else value


def _last_part(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]
