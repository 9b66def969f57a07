"""An artifact that kept samples, as a person names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.command.find_artifact import find_artifact
from flows.command.made_by import made_by
from flows.command.shown_samples import FILES
from flows.explain import nearest
from flows.running.records import DONE, RunRecord, find_run, run_entries, store_to_show
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore

_DIGEST = re.compile(r"([\w-]+/)?[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Found:
    """`run` and `stage` are empty for an artifact whose maker is not on record."""

    run: str
    stage: str
    record: ArtifactRecord
    file: Path
    """its samples, on this machine"""


def find_samples(artifact: str, run: str, root: str, is_meant: Callable[[str], bool]) -> Found:
    """The samples of a stage of `run`, or of RUN/STAGE, or of an artifact by the beginning of its
    digest; without either those of the last stage of the run whose name `is_meant`. Raises
    InputError."""
    if root or not run_entries():
        artifacts = ArtifactStore(store_to_show(root), home() / "cache")
        if not artifact:
            raise InputError("rollouts: name an artifact of this store; see `tributary artifacts`")
        return _by_digest(artifacts, artifact)
    if not run and "/" in artifact and not _DIGEST.fullmatch(artifact):
        run, _, artifact = artifact.rpartition("/")
    record = find_run(run)
    artifacts = ArtifactStore(record.store, home() / "cache")
    if not artifact:
        return _last(artifacts, record, is_meant)
    stages = record.stages()
    if (stage := stages.get(artifact)) is not None and stage.state in DONE:
        made = artifacts.find(stage.kind, stage.digest)
        if made is not None:
            return Found(record.run, stage.name, made, _file(artifacts, made))
    if stage is not None:
        raise InputError(
            f"stage {artifact} of run {record.run} is {stage.state}: its samples are kept when it"
            f" is done; `tributary logs {record.run} {artifact}` shows what it did"
        )
    if not _DIGEST.fullmatch(artifact):
        raise InputError(
            f"run {record.run} has reached no stage `{artifact}`{nearest(artifact, list(stages))};"
            f" it has {', '.join(stages) or 'none'}. Name another run with --run"
        )
    return _by_digest(artifacts, artifact)


def _by_digest(artifacts: ArtifactStore, wanted: str) -> Found:
    made = find_artifact(artifacts, wanted)
    maker = made_by(artifacts, made)
    return Found(maker.run, maker.stage, made, _file(artifacts, made))


def _last(artifacts: ArtifactStore, record: RunRecord, is_meant: Callable[[str], bool]) -> Found:
    """Models of several experts are in the evaluation, which comes after the stages by name."""
    done = [stage for stage in record.stages().values() if stage.state in DONE]
    named = [stage for stage in done if is_meant(stage.name)]
    for stage in sorted(named or done, key=lambda stage: stage.started, reverse=True):
        made = artifacts.find(stage.kind, stage.digest)
        if made is not None and _name(artifacts, made):
            return Found(record.run, stage.name, made, _file(artifacts, made))
    raise InputError(
        f"no finished stage of run {record.run} has kept samples yet; see `tributary report"
        f" {record.run}`"
    )


def _file(artifacts: ArtifactStore, record: ArtifactRecord) -> Path:
    name = _name(artifacts, record)
    if not name:
        raise InputError(
            f"artifact {record.name} holds no samples: a stage of kind {record.kind} samples none."
            " rl, opd, rollout, distill and evaluate do"
        )
    return artifacts.local(record) / name


def _name(artifacts: ArtifactStore, record: ArtifactRecord) -> str:
    manifest = artifacts.manifest(record.kind, record.digest)
    there = {file.path for file in manifest.files} if manifest else set[str]()
    return next((name for name in FILES if name in there), "")
