"""Which run and stage made an artifact, as the store knows it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from infra.errors import TributaryError
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from tasks.durable.claims import Claims
from tasks.durable.protocol import job_path


@dataclass(frozen=True, slots=True)
class Maker:
    """Empty where the store does not say."""

    run: str = ""
    stage: str = ""


def made_by(artifacts: ArtifactStore, record: ArtifactRecord) -> Maker:
    """By its manifest; where that was written before manifests said so, by the claim of the attempt
    whose files it has."""
    if record.run:
        return Maker(record.run, record.stage)
    attempt = int(record.url.rpartition("/a")[2])
    store = artifacts.store
    try:
        owner = Claims(store, record.kind, record.digest).read(attempt).owner
        stage = json.loads(store.read(job_path(owner.job)))["stage"]
    except (FileNotFoundError, TributaryError, ValueError, TypeError, KeyError):
        return Maker()
    return Maker(owner.run, stage)
