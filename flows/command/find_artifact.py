"""An artifact or a model as a person names it.

3f09c2, rl/3f09c2            the beginning of a digest, alone or after its kind
agent-rl                     a stage of the latest run
cpu-demo/agent-rl            a stage of a run: its id, its name, or its recipe (the latest run)
@best, cpu-demo-agent@best   an alias in MLflow, of the latest run's model or of the one named
DIR, s3://bucket/model, hf:org/name@revision      an HF folder
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flows.running.records import find_run, run_entries, store_at, store_of, store_to_show
from infra.errors import InfrastructureError, InputError
from infra.home import home
from infra.hub import hub_hint, is_hub_name, snapshot
from infra.stack import load_stack
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.evicted import evict, hold, limit_bytes
from infra.tracking.aliases import aliased_artifact
from tasks.model_folder.files import ModelFiles
from tasks.model_folder.location import beside

_DIGITS = re.compile(r"[0-9a-f]{1,64}")
_NAMED = 12
"""digits of a digest that the name of an artifact's folder has"""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model folder on this machine, and where it comes from."""

    name: str
    """what a person called it"""
    folder: Path
    record: ArtifactRecord | None = None
    """None for a folder that is no artifact"""
    artifacts: ArtifactStore | None = None
    """the store that has the artifact"""


def find_artifact(artifacts: ArtifactStore, wanted: str) -> ArtifactRecord:
    """By the beginning of a digest, or by a stage of the latest run, or of a run that is named.

    Raises InputError.
    """
    found = list(islice(_beginning_with(artifacts, wanted), 2))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"several artifacts begin with {wanted}: give more of the digest")
    run, _, name = wanted.rpartition("/")
    stage = find_run(run).stage(name)
    made = artifacts.find(stage.kind, stage.digest) if stage and stage.digest else None
    if made is None:
        raise InputError(
            f"no artifact `{wanted}` in {artifacts.store.root}; see `tributary artifacts`"
        )
    return made


def _beginning_with(artifacts: ArtifactStore, wanted: str) -> Iterator[ArtifactRecord]:
    """Names are listed, and only the manifests of those that match are read."""
    kind, _, beginning = wanted.rpartition("/")
    if not _DIGITS.fullmatch(beginning):
        return
    for of_kind, short in artifacts.names(*filter(None, [kind])):
        if short.startswith(beginning[:_NAMED]):
            for manifest in artifacts.manifests([(of_kind, short)]):
                if manifest.digest.startswith(beginning):
                    yield artifacts.record(manifest)


def find_model(model: str, root: str) -> Path:
    """The folder of a model that a person named; `root` is the store of an artifact (the latest
    run's, if empty). Raises InputError."""
    return find_named_model(model, root).folder


def find_named_model(model: str, root: str) -> NamedModel:
    """The same, with the artifact that it is. Raises InputError; StorageError if it is out of
    reach."""
    found = _found(model, root)
    if not (found.folder / "config.json").is_file():
        what = f"`{model}` is no model; give an HF folder"
        raise InputError(f"{found.folder} has no config.json: {what}")
    return found


def _found(model: str, root: str) -> NamedModel:
    if is_hub_name(model):
        return NamedModel(model, snapshot(model))
    path = Path(model).expanduser()
    if path.is_dir():
        return NamedModel(model, path.resolve())
    if "://" in model:
        return NamedModel(model, _fetched(model))
    artifacts, record = _artifact(model, root, model)
    return NamedModel(model, artifacts.local(record).resolve(), record, artifacts)


def _artifact(model: str, root: str, written: str) -> tuple[ArtifactStore, ArtifactRecord]:
    if model.startswith(("./", "../", "/", "~")):
        raise InputError(
            f"{written}: there is no such folder; the path is relative to {Path.cwd()}"
        )
    try:
        return locate_artifact(model, root)
    except InputError as error:
        told = f"{written}: is no folder, and no artifact: {error}{hub_hint(model)}"
        raise InputError(told) from None


def locate_artifact(wanted: str, root: str) -> tuple[ArtifactStore, ArtifactRecord]:
    """The artifact of any of the names above but a folder's, and its store. Raises InputError."""
    name, at, alias = wanted.rpartition("@")
    if at:
        return _aliased(name or _only_model(wanted), alias)
    run = wanted.rpartition("/")[0]
    known = [entry for entry in run_entries() if run and entry.is_called(run)]
    store = store_of(known[0].storage) if known and not root else store_to_show(root)
    artifacts = ArtifactStore(store, home() / "cache")
    return artifacts, find_artifact(artifacts, wanted)


def model_place(model: str, root: str) -> str:
    """What a recipe's `base.folder` says of a model that a person named. Raises InputError."""
    is_place = "://" in model or model.startswith("$") or is_hub_name(model)
    if is_place or Path(model).expanduser().is_dir():
        return beside(model, Path.cwd())
    return _artifact(model, root, f"--model {model}")[1].url


def _aliased(name: str, alias: str) -> tuple[ArtifactStore, ArtifactRecord]:
    stack = load_stack()
    if stack is None:
        raise InfrastructureError(
            f"{name}@{alias} is an alias in MLflow, and the local stack is down: start it with"
            " `tributary up`, or name the artifact by its digest"
        )
    found = aliased_artifact(stack.mlflow_uri, name, alias)
    if found is None:
        raise InputError(
            f"MLflow has no model {name} with the alias `{alias}`; models are called"
            " RECIPE-EXPERT or RECIPE-unified, and each run that ends sets the aliases best, sft,"
            f" rl ...: {stack.mlflow_uri}/#/models"
        )
    artifacts = ArtifactStore(store_at(found.root), home() / "cache")
    for record in _beginning_with(artifacts, found.digest):
        return artifacts, record
    raise InputError(
        f"{name}@{alias} is artifact {found.digest[:12]}, which is no longer in {found.root}; run"
        " the recipe again"
    )


def _only_model(wanted: str) -> str:
    """The registered model that an alias alone means: the latest run's unified model or its only
    expert."""
    recipe = find_run().recipe()
    names = ["unified"] if recipe.unified is not None else list(recipe.experts)
    if len(names) > 1:
        choice = ", ".join(f"{recipe.name}-{name}{wanted}" for name in names)
        raise InputError(f"{wanted}: the latest run made several models; give one of {choice}")
    return f"{recipe.name}-{names[0]}"


def _fetched(url: str) -> Path:
    """A copy of a model folder elsewhere; the same one while names and sizes stay the same."""
    files = ModelFiles(url)
    listed = json.dumps([url, sorted(files.sizes.items())])
    copy = home() / "cache" / "models" / hashlib.sha256(listed.encode()).hexdigest()[:16]
    is_new = not copy.exists()
    hold(copy)
    for name, size in files.sizes.items():
        copy.mkdir(parents=True, exist_ok=True)
        if not (copy / name).is_file() or (copy / name).stat().st_size != size:
            files.copy(name, copy)
    if is_new:
        evict(home() / "cache", limit_bytes())
    return copy
