"""Artifacts that a person wants to keep: `pins/<kind>-<digest12>.json` in their store."""

from __future__ import annotations

import time

from pydantic import ValidationError

from infra.config import Config
from infra.errors import DamagedRecord
from infra.store.manifest import ArtifactRecord
from infra.store.store import Store

_FOLDER = "pins"


class Pin(Config):
    kind: str
    digest: str
    note: str = ""
    """why, in the words of who pinned it"""
    created: float
    """Unix time"""


def pins(store: Store) -> list[Pin]:
    """All of a store, by name. Raises DamagedRecord: what a pin that cannot be read keeps is not
    known."""
    names = [name for name in store.listdir(_FOLDER) if name.endswith(".json")]
    return [_read(store, f"{_FOLDER}/{name}") for name in names]


def pin(store: Store, record: ArtifactRecord, note: str) -> None:
    """Pin it, or change the note of its pin."""
    made = Pin(kind=record.kind, digest=record.digest, note=note, created=time.time())
    store.write(_path(record), made.model_dump_json(indent=1).encode())


def unpin(store: Store, record: ArtifactRecord) -> bool:
    """Whether it was pinned."""
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
