"""An artifact or a model as a person names it.

3f09c2            the beginning of a digest
agent-rl          a stage of the latest run
cpu-demo/agent-rl a stage of a run: its id, its name, or its recipe (the latest run)
DIR               an HF folder
"""

from __future__ import annotations

from pathlib import Path

from flows.running.records import find_run, has_run, store_to_show
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from tasks.model_folder.location import beside


def locate_artifact(wanted: str, root: str) -> tuple[ArtifactStore, ArtifactRecord]:
    """The artifact, and the store that has it: `root`, or its run's. Raises InputError."""
    run = wanted.rpartition("/")[0]
    store = find_run(run).store if not root and run and has_run(run) else store_to_show(root)
    artifacts = ArtifactStore(store, home() / "cache")
    return artifacts, find_artifact(artifacts, wanted)


def model_place(model: str, root: str) -> str:
    """What a recipe's `base.folder` says of a model that a person named. Raises InputError."""
    if "://" in model or model.startswith("$") or Path(model).expanduser().is_dir():
        return beside(model, Path.cwd())
    try:
        return locate_artifact(model, root)[1].url
    except InputError as error:
        raise InputError(f"--model {model}: is no folder, and no artifact: {error}") from None


def find_artifact(artifacts: ArtifactStore, wanted: str) -> ArtifactRecord:
    """By the beginning of a digest, or by a stage of the latest run, or of a run that is named.

    Raises InputError.
    """
    found = [record for record in artifacts.list() if record.digest.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise InputError(f"several artifacts begin with {wanted}: give more of the digest")
    run, _, name = wanted.rpartition("/")
    stage = find_run(run).stage(name)
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
        artifacts, record = locate_artifact(model, root)
        path = artifacts.local(record)
    if not (path / "config.json").is_file():
        raise InputError(f"{path} has no config.json: `{model}` is no model; give an HF folder")
    return path.resolve()
