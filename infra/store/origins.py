"""Where a local copy of an artifact came from, so that another host can fetch its own.

A path means nothing on another host. Whoever sends one there sends a `FolderCopy`; the receiver
asks for its own path with `here`.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from infra.config import Config
from infra.errors import InputError
from infra.home import home
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store


class Origin(Config):
    """Example: root="s3://bucket/store", kind="base", digest="3f09..." """

    root: str
    """of the store"""
    kind: str
    digest: str


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A folder of the host that sends it."""

    path: Path
    origin: Origin | None
    """None: it is no copy of an artifact"""
    host: str = socket.gethostname()

    def here(self) -> Path:
        """The same files on the host that calls this, fetched from the store if need be.

        Raises InputError if they cannot be had here, CorruptArtifact, StorageError.
        """
        if self.host == socket.gethostname() and self.path.is_dir():
            return self.path
        if self.origin is not None:
            origin = self.origin
            artifacts = ArtifactStore(Store(origin.root), home() / "cache")
            record = ArtifactRecord(kind=origin.kind, digest=origin.digest, url="")
            return artifacts.local(record)
        if self.path.is_dir():  # on a file system that the hosts share
            return self.path
        raise InputError(
            f"{self.path} of host {self.host} does not exist on {socket.gethostname()}: set"
            " `storage.root` to a store that every host reaches, such as s3://bucket/store, or put"
            " the folder on a file system that they share"
        )


def note_origin(folder: Path, origin: Origin) -> None:
    """`folder` is a copy of this artifact."""
    note = _note(folder)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(origin.model_dump_json())


def origin_of(folder: Path) -> Origin | None:
    """What `note_origin` said of it; None if nothing."""
    try:
        return Origin.model_validate_json(_note(folder).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _note(folder: Path) -> Path:
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:24]
    return home() / "cache" / "origins" / f"{name}.json"
