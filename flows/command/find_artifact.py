"""An artifact as a person names it."""

from __future__ import annotations

from flows.running.records import find_run
from infra.errors import InputError
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
