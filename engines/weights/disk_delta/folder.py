"""The folder of versions: which of them stay, and how a reader walks to the newest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from secrets import token_hex

from engines.weights.disk_delta.manifest import NAME, Identity, Manifest
from infra.store.store import Store

_OURS = re.compile(r"\d{8}-[0-9a-f]{8}")


def new_folder(version: int) -> str:
    """A name that no version had before. Example: new_folder(7) -> "00000007-3fa9c1d2" """
    return f"{version:08d}-{token_hex(4)}"


def read_manifest(store: Store, folder: str) -> Manifest:
    """Raises FileNotFoundError for a version that is not complete or was removed, CorruptArtifact,
    StorageError."""
    name = f"{folder}/{NAME}"
    return Manifest.parse(store.read(name), store.url(name))


def chain_to(store: Store, folder: str, held: Identity | None) -> list[tuple[str, Manifest]]:
    """The folders to apply in turn, from the version after `held`, or from a whole one.

    Raises as `read_manifest`: then the chain is broken.
    """
    chain: list[tuple[str, Manifest]] = []
    manifest = read_manifest(store, folder)
    while manifest.identity != held:
        chain.append((folder, manifest))
        base = manifest.base
        if base is None or base.identity == held:
            break
        folder = base.folder
        manifest = read_manifest(store, folder)
    return chain[::-1]


def remove_all_but(store: Store, kept: Sequence[str]) -> None:
    """Remove other versions, also those that an earlier trainer left; files of others stay."""
    for name in store.listdir(""):
        if _OURS.fullmatch(name) and name not in kept:
            store.delete_tree(name)
