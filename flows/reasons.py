"""Why a stage is not cached: how it differs from the nearest one on record.

The nearest is what the newest run of this recipe made under the stage's name; else, of the store's
newest artifacts of the kind, the one that differs least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import ValidationError

from flows.plan import PlannedStage
from flows.running.records import DONE, runs_of
from infra.code.identity import CodeIdentity
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.manifest import Manifest
from tasks.durable.identity import StageIdentity

RUNS, ARTIFACTS = 10, 20
"""how many of each are looked at, newest first"""
_FILES_NAMED = 3
_MISSING = object()


def reasons(
    stage: PlannedStage,
    identity: StageIdentity,
    cached: Mapping[str, bool],
    artifacts: ArtifactStore,
    listed: Sequence[ArtifactRecord],
    recipe: str,
) -> list[str]:
    """At least one sentence. `cached` says which stages of the plan are in the store, `listed` is
    all that is in it.

    Examples: `rl.optimizer.lr: 2e-4 -> 1e-4`, `rewards/math.py changed`,
    `input model: agent-sft is new`, `never run before`.
    """
    nearest = _of_runs(stage, identity, artifacts, recipe)
    if isinstance(nearest, str):
        return [nearest]
    if nearest is None:
        near = _of_kind(stage.kind, artifacts, listed)
        found = [_differences(stage, identity, cached, manifest) for manifest in near]
        return min(found, key=len, default=["never run before"])
    return _differences(stage, identity, cached, nearest)


def _of_runs(
    stage: PlannedStage, identity: StageIdentity, artifacts: ArtifactStore, recipe: str
) -> Manifest | str | None:
    """What the newest run made under the stage's name; or what became of this very stage."""
    for record in islice(runs_of(recipe, artifacts.store), RUNS):
        known = record.stage(stage.name)
        if known is None or known.kind != stage.kind or not known.digest:
            continue
        if known.digest == identity.digest:
            done = known.state in DONE
            return "its artifact was deleted" if done else "started but not finished"
        manifest = artifacts.manifest(known.kind, known.digest)
        if manifest is not None and _code_of(manifest) is not None:
            return manifest
    return None


def _of_kind(
    kind: str, artifacts: ArtifactStore, listed: Sequence[ArtifactRecord]
) -> Iterator[Manifest]:
    records = (record for record in listed if record.kind == kind)
    for record in islice(records, ARTIFACTS):
        manifest = artifacts.manifest(record.kind, record.digest)
        if manifest is not None and _code_of(manifest) is not None:
            yield manifest


def _code_of(manifest: Manifest) -> CodeIdentity | None:
    """None where it was recorded in another form than this version's."""
    try:
        return CodeIdentity.model_validate(manifest.code)
    except ValidationError:
        return None


def _differences(
    stage: PlannedStage, identity: StageIdentity, cached: Mapping[str, bool], old: Manifest
) -> list[str]:
    before = _code_of(old)
    assert before is not None
    return [
        *_settings(stage.kind, old.identity, identity.content),
        *_code(before, identity.code),
        *_inputs(stage, identity, cached, old),
    ]


def _inputs(
    stage: PlannedStage, identity: StageIdentity, cached: Mapping[str, bool], old: Manifest
) -> Iterator[str]:
    for role, source in stage.inputs.items():
        if old.inputs.get(role) != identity.inputs[role]:
            is_new = not cached[source]
            yield f"input {role}: {source} is {'new' if is_new else 'another artifact'}"
    for role in old.inputs.keys() - stage.inputs.keys():
        yield f"input {role}: does not exist any more"


def _settings(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = _flat(old), _flat(new)
    for path in dict.fromkeys([*after, *before]):
        was, now = before.get(path, _MISSING), after.get(path, _MISSING)
        if was == now:
            continue
        place = ".".join([kind, *path[1:]] if path[0] == "settings" else path)
        if path[:2] == ("settings", "folder"):
            yield f"base.folder: {path[2] if len(path) > 2 else 'what it holds'} changed"
        else:
            yield f"{place}: {_text(was)} -> {_text(now)}"


def _flat(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Values by path; an item of a list is called by its name, where it has one."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        items = [(str(v.get("name", n)), v) for n, v in enumerate(value)]
    else:
        return {path: value}
    return {at: leaf for key, item in items for at, leaf in _flat(item, (*path, key)).items()}


def _text(value: Any) -> str:
    """As in a recipe. Example: 0.0002 -> 2e-4"""
    if value is _MISSING:
        return "not set"
    if isinstance(value, float) and value and not 1e-3 <= abs(value) < 1e6:
        digits, _, exponent = f"{value:e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


def _code(old: CodeIdentity, new: CodeIdentity) -> Iterator[str]:
    ours = list(_files(old.files, new.files))
    yield from ours[:_FILES_NAMED]
    if len(ours) > _FILES_NAMED:
        yield f"{len(ours) - _FILES_NAMED} more of Tributary's own files changed"
    yield from (f"hook {line}" for line in _files(old.hooks, new.hooks))
    yield from (f"data {line}" for line in _files(old.data, new.data))
    for name in sorted(old.installed.keys() | new.installed.keys()):
        was, now = old.installed.get(name, "not used"), new.installed.get(name, "not used")
        if was != now:
            yield f"installed {name}: {was} -> {now}"


def _files(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"{name} is new"
        elif name not in new:
            yield f"{name} is no longer used"
        elif old[name] != new[name]:
            yield f"{name} changed"
