"""Computes the digests of a plan before anything runs, and says why a stage is not cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from flows.checks.hook_checks import own_files
from flows.plan import PlannedStage
from flows.recipe import Recipe
from flows.running.records import runs_of, store_of, warn_once
from infra.code.identity import CodeIdentity, LookedUp, looked_up_in
from infra.code.kept_definitions import keep_definitions
from infra.errors import CorruptArtifact, DamagedRecord
from infra.home import SOURCE_ROOT
from infra.store.artifacts import ArtifactStore
from infra.store.manifest import Manifest
from infra.user_files import InstalledFiles
from tasks.durable.stage_identity import StageIdentity, stage_identity

RUNS = 10
"""how many runs are looked at, newest first"""
DELETED = "its artifact was deleted"
LOST = "what was made of it before is in the store no more"
Part = Literal["setting", "code", "data", "input"]
_FILES_NAMED = 3
_MISSING = object()


def planned_identities(
    plan: Iterable[PlannedStage],
    user: InstalledFiles | None = None,
    *,
    root: Path = SOURCE_ROOT,
    looked_up: LookedUp | None = None,
    taken_as: Callable[[PlannedStage, StageIdentity], StageIdentity] | None = None,
) -> dict[str, StageIdentity]:
    """Return the identities by stage name. `taken_as` says which result counts for a stage, if it
    is another's. Raises InputError as `stage_identity` does."""
    found: dict[str, StageIdentity] = {}
    looked_up = looked_up or looked_up_in(root)
    digests: dict[str, str] = {}
    for stage in plan:
        inputs = {role: digests[source] for role, source in stage.inputs.items()}
        identity = stage_identity(stage.spec, inputs, user, root=root, looked_up=looked_up)
        found[stage.name] = taken_as(stage, identity) if taken_as else identity
        digests[stage.name] = found[stage.name].digest
    keep_definitions()
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """What makes a stage another one. Example: Change("code", "rewards/math.py changed")"""

    part: Part
    """of the identity: a setting; the code that it runs, yours and installed packages included;
    files that it trains on or that your code reads; what is made before it"""
    text: str


def stage_reasons(recipe: Recipe, plan: list[PlannedStage]) -> dict[str, list[str]]:
    """Why each stage is to run; nothing for a cached one. Raises what a store raises."""
    user = own_files(recipe)
    artifacts = ArtifactStore(store_of(recipe.storage))
    taken = taken_by(recipe.name, artifacts)
    identities = planned_identities(
        plan, user, taken_as=lambda s, i: taken(s, i) if s.accepts_code else i
    )
    cached = {
        name: artifacts.find(identity.kind, identity.digest) is not None
        for name, identity in identities.items()
    }

    def why(stage: PlannedStage) -> list[str]:
        return reasons(stage, identities[stage.name], cached, artifacts, recipe.name)

    return {stage.name: [] if cached[stage.name] else why(stage) for stage in plan}


def made_by_other_code(recipe: Recipe, plan: list[PlannedStage]) -> list[str]:
    """The stages that are to run for no other reason than that Tributary's own code changed since
    the newest run of this recipe. Raises what a store raises."""
    user = own_files(recipe)
    taken = taken_by(recipe.name, ArtifactStore(store_of(recipe.storage)))
    found: list[str] = []

    def take(stage: PlannedStage, identity: StageIdentity) -> StageIdentity:
        older = taken(stage, identity)
        if older is not identity:
            found.append(stage.name)
        return older

    planned_identities(plan, user, taken_as=take)
    return found


def taken_by(
    recipe: str, artifacts: ArtifactStore
) -> Callable[[PlannedStage, StageIdentity], StageIdentity]:
    """Return what counts for a stage where other code of ours is accepted: what the newest run made
    under its name, if nothing but our code differs; else the stage's own identity."""

    def taken(stage: PlannedStage, identity: StageIdentity) -> StageIdentity:
        if artifacts.find(identity.kind, identity.digest) is not None:
            return identity
        older = _of_runs(stage, identity, artifacts, recipe)
        if not isinstance(older, StageIdentity) or older.inputs != identity.inputs:
            return identity
        ours = identity.code.model_copy(update={"files": older.code.files})
        differs = any(changes(older, replace(identity, code=ours)))
        return identity if differs else older

    return taken


def reasons(
    stage: PlannedStage,
    identity: StageIdentity,
    cached: Mapping[str, bool],
    artifacts: ArtifactStore,
    recipe: str,
) -> list[str]:
    """Return at least one sentence. `cached` says which stages of the plan are in the store.

    Examples: `rl.optimizer.lr: 2e-4 -> 1e-4`, `rewards/math.py changed`,
    `input model: agent-sft is new`, `never run before`.
    """
    nearest = _of_runs(stage, identity, artifacts, recipe)
    if isinstance(nearest, str):
        return [nearest]
    if nearest is None:
        return ["never run before"]
    # Nothing differs from one that was made again: the first one was deleted since.
    return _differences(stage, identity, cached, nearest) or [DELETED]


def identity_of(manifest: Manifest) -> StageIdentity | None:
    """Return what the artifact was made of; None where it was recorded in another form than this
    version's."""
    try:
        code = CodeIdentity.model_validate(manifest.code)
    except ValidationError:
        return None
    return StageIdentity(manifest.kind, manifest.identity, manifest.inputs, code, manifest.again)


def changes(before: StageIdentity, after: StageIdentity) -> Iterator[Change]:
    """Yield what differs of two stages of one kind, inputs aside."""
    yield from _settings(after.kind, before.content, after.content)
    yield from _code(before.code, after.code)


def _of_runs(
    stage: PlannedStage, identity: StageIdentity, artifacts: ArtifactStore, recipe: str
) -> StageIdentity | str | None:
    """Return what the newest run made under the stage's name; or what became of this very stage."""
    was_made = False
    for record in islice(runs_of(recipe, artifacts.store), RUNS):
        try:
            known = record.stage(stage.name)
            if known is None or known.kind != stage.kind or not known.digest:
                continue
            if known.digest == identity.digest:
                return DELETED if known.is_done else "started but not finished"
            manifest = artifacts.manifest(known.kind, known.digest)
        except (DamagedRecord, CorruptArtifact) as error:
            warn_once(f"run {record.run} is passed over: {error}")
            continue
        if manifest is not None and (found := identity_of(manifest)) is not None:
            return found
        was_made |= known.is_done
    return LOST if was_made else None


def _differences(
    stage: PlannedStage, identity: StageIdentity, cached: Mapping[str, bool], old: StageIdentity
) -> list[str]:
    return [
        *(change.text for change in changes(old, identity)),
        *_inputs(stage, identity, cached, old),
    ]


def _inputs(
    stage: PlannedStage, identity: StageIdentity, cached: Mapping[str, bool], old: StageIdentity
) -> Iterator[str]:
    for role, source in stage.inputs.items():
        if old.inputs.get(role) != identity.inputs[role]:
            is_new = not cached[source]
            yield f"input {role}: {source} is {'new' if is_new else 'another artifact'}"
    for role in old.inputs.keys() - stage.inputs.keys():
        yield f"input {role}: does not exist any more"


def _settings(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = _flat(old), _flat(new)
    for path in dict.fromkeys([*after, *before]):
        was, now = before.get(path, _MISSING), after.get(path, _MISSING)
        if was == now:
            continue
        place = ".".join([kind, *path[1:]] if path[0] == "settings" else path)
        if path[:2] == ("settings", "folder"):
            name = path[2] if len(path) > 2 else "what it holds"
            yield Change("data", f"base.folder: {name} changed")
        elif path[:2] == ("settings", "data") and "files" in path[:-1]:
            name = path[-1].partition(": ")[2]
            yield Change("data", f"data {name} {_fate(was, now)}")
        else:
            yield Change("setting", f"{place}: {value_text(was)} -> {value_text(now)}")


def _fate(was: Any, now: Any) -> str:
    return "is new" if was is _MISSING else "is no longer used" if now is _MISSING else "changed"


def _flat(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Values by path; an item of a list is called by its name, where it has one."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        items = [(str(v.get("name", n)), v) for n, v in enumerate(value)]
    else:
        return {path: value}
    return {at: leaf for key, item in items for at, leaf in _flat(item, (*path, key)).items()}


def value_text(value: Any) -> str:
    """Return a value as one writes it in a recipe. Example: 0.0002 -> 2e-4"""
    if value is _MISSING:
        return "not set"
    if isinstance(value, float) and value and not 1e-3 <= abs(value) < 1e6:
        digits, _, exponent = f"{value:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


def _code(old: CodeIdentity, new: CodeIdentity) -> Iterator[Change]:
    ours = list(_files(old.files, new.files))
    if len(ours) > _FILES_NAMED:
        more = f"{len(ours) - _FILES_NAMED} more of Tributary's own files changed"
        ours = [*ours[:_FILES_NAMED], more]
    yield from (Change("code", line) for line in ours)
    yield from (Change("code", f"hook {line}") for line in _files(old.hooks, new.hooks))
    yield from (Change("data", f"data {line}") for line in _files(old.data, new.data))
    for name in sorted(old.installed.keys() | new.installed.keys()):
        was, now = old.installed.get(name, "not used"), new.installed.get(name, "not used")
        if was != now:
            yield Change("code", f"installed {name}: {was} -> {now}")


def _files(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name, _MISSING), new.get(name, _MISSING)
        if was != now:
            yield f"{name} {_fate(was, now)}"
