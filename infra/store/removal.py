"""Artifacts that a person keeps (`pins/<kind>-<digest12>.json`), the removal of others, and which
checkpoints of an unfinished stage are kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import PositiveInt, ValidationError

from infra.config import Config
from infra.errors import DamagedRecord
from infra.store.manifest import ArtifactRecord
from infra.store.store import Store

_FOLDER = "pins"
_SHORT = 12
_ARTIFACTS, _CHECKPOINTS = "artifacts", "checkpoints"
RESULTS = "results"
"""what evaluations said of a model, by the first digits of its digest"""
NoteKind: TypeAlias = Literal[
    "rollouts", "turns", "takes", "trained", "shown", "told", "searches", "findings"
]
"""`rollouts`: finished ones, by ticket. `turns`: those of unfinished rollouts, by ticket. `takes`:
which tickets a step is trained on, by step. `trained`: the rollouts of these tickets, by step,
where they are kept for a replay. `shown`: the rollouts to browse of the steps before a checkpoint,
by its step. `told`: results that a data source was told, by how many there were before.
`searches`: what came of one for the sampling temperature, by the step before it.
`findings`: on problems that were tried, under 0"""


class Pin(Config):
    kind: str
    digest: str
    note: str = ""
    """why, in the words of who pinned it"""
    created: float
    """Unix time"""


def pins(store: Store) -> list[Pin]:
    """Return all pins of a store, by name. Raises DamagedRecord: what a pin that cannot be read
    keeps is not known."""
    names = [name for name in store.listdir(_FOLDER) if name.endswith(".json")]
    return [_read(store, f"{_FOLDER}/{name}") for name in names]


def pin(store: Store, record: ArtifactRecord, note: str) -> None:
    """Pin it, or change the note of its pin."""
    made = Pin(kind=record.kind, digest=record.digest, note=note, created=time.time())
    store.write(_path(record), made.model_dump_json(indent=1).encode())


def unpin(store: Store, record: ArtifactRecord) -> bool:
    """Return whether it was pinned."""
    was_pinned = store.exists(_path(record))
    store.delete_tree(_path(record))
    return was_pinned


def _read(store: Store, path: str) -> Pin:
    try:
        return Pin.model_validate_json(store.read(path))
    except ValidationError as error:
        raise DamagedRecord(
            f"the pin {store.url(path)} cannot be read: {error.errors()[0]['msg']}. Delete it, and"
            " pin its artifact again: the file's name is the kind and the digest"
        ) from error


def _path(record: ArtifactRecord) -> str:
    return f"{_FOLDER}/{record.kind}-{record.digest[:12]}.json"


def with_checkpoints(store: Store) -> set[tuple[str, str]]:
    """Kind and first twelve digits of stages that left checkpoints, finished or not."""
    kinds = store.listdir(_CHECKPOINTS)
    return {(kind, short) for kind in kinds for short in store.listdir(f"{_CHECKPOINTS}/{kind}")}


def is_finished(store: Store, kind: str, short: str) -> bool:
    """Return whether there is a manifest, which may be damaged."""
    return store.exists(f"{_ARTIFACTS}/{kind}/{short}/manifest.json")


def size_of_checkpoints(store: Store, kind: str, short: str) -> int:
    """Bytes; each file is looked at."""
    return store.size_of(f"{_CHECKPOINTS}/{kind}/{short}")


def size_of_unfinished(store: Store, kind: str, short: str) -> int:
    """Bytes that a stage without an artifact left; each file is looked at."""
    files = store.size_of(f"{_ARTIFACTS}/{kind}/{short}")
    return files + size_of_checkpoints(store, kind, short)


def remove(store: Store, cache: Path, kind: str, digest: str) -> None:
    """Delete an artifact, its checkpoints, its results, and the copy in this machine's `cache`.

    The manifest goes first: what is left of an interrupted removal is no artifact.
    """
    place = f"{_ARTIFACTS}/{kind}/{digest[:_SHORT]}"
    store.delete_tree(f"{place}/manifest.json")
    store.delete_tree(place)
    store.delete_tree(f"{_CHECKPOINTS}/{kind}/{digest[:_SHORT]}")
    store.delete_tree(f"{RESULTS}/{digest[:_SHORT]}")
    shutil.rmtree(cache / place, ignore_errors=True)


class Retention(Config):
    """The newest are always kept, others on request. All are deleted when the stage is done."""

    last: PositiveInt = 2
    """number of newest checkpoints to keep; with two, one may be damaged"""
    every: PositiveInt | None = None
    """also keep those whose step is a multiple of this; None: keep none of these"""
    best: bool = False
    """also keep the one with the highest score: RL's mean outcome, SFT's lowest loss"""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A whole checkpoint as the policy sees it. Example: Kept("step-00000010-a1", 10, 0.62)"""

    name: str
    step: int
    score: float | None


def retained(newest_first: Sequence[KeptCheckpoint], policy: Retention) -> set[str]:
    """Names of the checkpoints that stay."""
    kept = {c.name for c in newest_first[: policy.last]}
    if policy.every is not None:
        kept |= {c.name for c in newest_first if c.step % policy.every == 0}
    scored = [(c.score, c.step, c.name) for c in newest_first if c.score is not None]
    if policy.best and scored:
        kept.add(max(scored)[2])
    return kept
