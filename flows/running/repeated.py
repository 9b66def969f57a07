"""A stage that runs although the store has its result (`--force`).

A result never changes: others may be made from it. So what is made again has a digest of its own,
which holds the run that made it; attempts, checkpoints and resume are that digest's. Of two equal
results the first one counts, so that what was made from it stays cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flows.running.records import StageRecord
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.trace_file import TRACE_FILE
from tasks.durable.identity import StageIdentity

_NAMED = 3


def again_in(
    run: str, identity: StageIdentity, known: StageRecord | None, artifacts: ArtifactStore
) -> StageIdentity:
    """What the run makes; the identity itself where there is no result yet, or where this run
    makes it."""
    begun_here = known is not None and known.mine and known.digest == identity.digest
    if begun_here or artifacts.find(identity.kind, identity.digest) is None:
        return identity
    return replace(identity, again=run)


def settled(
    first: ArtifactRecord, second: ArtifactRecord, artifacts: ArtifactStore
) -> tuple[ArtifactRecord, str]:
    """The result that counts, and a sentence on how the two compare."""
    before, after = _checksums(first, artifacts), _checksums(second, artifacts)
    if before == after:
        return first, "ran again: every file is the same; what was made from it stays cached"
    names = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return second, (
        f"ran again: another result than {first.name}, in {', '.join(names[:_NAMED])}{more}; what"
        " is made from it runs again in this run"
    )


def _checksums(record: ArtifactRecord, artifacts: ArtifactStore) -> Mapping[str, str]:
    """Those of its files; the timeline holds times, so it is another one in every run."""
    manifest = artifacts.manifest(record.kind, record.digest)
    files = manifest.files if manifest else []
    return {file.path: file.sha256 for file in files if file.path != TRACE_FILE}
