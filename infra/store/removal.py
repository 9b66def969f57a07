"""Taking artifacts out of a store, with what their stages left beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

from infra.store.store import Store

_SHORT = 12
_ARTIFACTS, _CHECKPOINTS = "artifacts", "checkpoints"


def unfinished(store: Store) -> list[tuple[str, str]]:
    """Kind and first twelve digits of stages without an artifact that left checkpoints or files."""
    found = {
        (kind, short)
        for top in (_ARTIFACTS, _CHECKPOINTS)
        for kind in store.listdir(top)
        for short in store.listdir(f"{top}/{kind}")
    }
    return sorted(
        (kind, short)
        for kind, short in found
        if not store.exists(f"{_ARTIFACTS}/{kind}/{short}/manifest.json")
    )


def size_of(store: Store, kind: str, digest: str) -> int:
    """Bytes of an artifact's files and of its stage's checkpoints."""
    tops = (_ARTIFACTS, _CHECKPOINTS)
    return sum(store.size_of(f"{top}/{kind}/{digest[:_SHORT]}") for top in tops)


def remove(store: Store, cache: Path, kind: str, digest: str) -> None:
    """Delete an artifact, its stage's checkpoints, and the copy in this machine's `cache`.

    The manifest goes first: what is left of an interrupted removal is no artifact.
    """
    place = f"{_ARTIFACTS}/{kind}/{digest[:_SHORT]}"
    store.delete_tree(f"{place}/manifest.json")
    store.delete_tree(place)
    store.delete_tree(f"{_CHECKPOINTS}/{kind}/{digest[:_SHORT]}")
    shutil.rmtree(cache / place, ignore_errors=True)
