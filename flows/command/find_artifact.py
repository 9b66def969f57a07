"""An artifact as a person names it."""

from __future__ import annotations

from pathlib import Path

from flows.running.records import find_run, store_to_show
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore


def find_artifact(artifacts: ArtifactStore, wanted: str) -> ArtifactRecord:
    """By the beginning of a digest, or by a stage's name in the latest run. Raises InputError."""
    found = [record for record in artifacts.list() if record.digest.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise InputError(f"several artifacts begin with {wanted}: give more of the digest")
    stage = find_run().stage(wanted)
    made = artifacts.find(stage.kind, stage.digest) if stage and stage.digest else None
    if made is None:
        raise InputError(
            f"no artifact `{wanted}` in {artifacts.store.root}; see `tributary artifacts`"
        )
    return made


def find_model(model: str, root: str) -> Path:
    """The folder of a model that a person named: an HF folder, or an artifact of the store `root`
    (of the latest run's, if empty). Raises InputError."""
    path = Path(model).expanduser()
    if not path.is_dir():
        artifacts = ArtifactStore(store_to_show(root), home() / "cache")
        path = artifacts.local(find_artifact(artifacts, model))
    if not (path / "config.json").is_file():
        raise InputError(f"{path} has no config.json: `{model}` is no model; give an HF folder")
    return path.resolve()
