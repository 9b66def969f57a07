"""Taking artifacts out of a store, with what their stages left beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.store.store import Store

_SHORT = 12
_ARTIFACTS, _CHECKPOINTS = "artifacts", "checkpoints"
RESULTS = "results"
"""what evaluations said of a model, by the first digits of its digest"""


def with_checkpoints(store: Store) -> set[tuple[str, str]]:
    """Kind and first twelve digits of stages that left checkpoints, finished or not."""
    kinds = store.listdir(_CHECKPOINTS)
    return {(kind, short) for kind in kinds for short in store.listdir(f"{_CHECKPOINTS}/{kind}")}


def is_finished(store: Store, kind: str, short: str) -> bool:
    """Whether there is a manifest, which may be damaged."""
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
