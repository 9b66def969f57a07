"""Where a local copy of an artifact came from, so that another host can fetch its own.

A path means nothing on another host. Whoever sends one there sends a `FolderCopy`; the receiver
asks for its own path with `here`.
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from infra.config import Config
from infra.errors import InputError
from infra.home import home, write_whole
from infra.store.artifacts import ArtifactRecord, ArtifactStore
from infra.store.store import Store


class Origin(Config):
    """Example: root="s3://bucket/store", kind="base", digest="3f09..." """

    root: str
    """of the store"""
    kind: str
    digest: str
    config: str = ""
    """the text of a `config.json` in place of the artifact's own; empty for its own"""


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A folder of the host that sends it."""

    path: Path
    origin: Origin | None
    """None: it is no copy of an artifact"""
    host: str = socket.gethostname()

    def here(self) -> Path:
        """Return the same files on the host that calls this, fetched from the store if need be.

        Raises InputError if they cannot be had here, CorruptArtifact, StorageError.
        """
        if self.host == socket.gethostname() and self.path.is_dir():
            return self.path
        if self.origin is not None:
            origin = self.origin
            artifacts = ArtifactStore(Store(origin.root))
            record = ArtifactRecord(kind=origin.kind, digest=origin.digest, url="")
            folder = artifacts.local(record)
            return _like(folder, origin) if origin.config else folder
        if self.path.is_dir():  # on a file system that the hosts share
            return self.path
        raise InputError(
            f"{self.path} of host {self.host} does not exist on {socket.gethostname()}: set"
            " `storage.root` to a store that every host reaches, such as s3://bucket/store, or put"
            " the folder on a file system that they share"
        )


def with_config(folder: Path, config: str, made: Path) -> Path:
    """`made`, with the files of `folder` and another `config.json`, also for other hosts."""
    made.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name != "config.json":
            with suppress(FileExistsError):  # another process of this host makes it, too
                (made / path.name).symlink_to(path.resolve())
    part = made / f"config.json.{os.getpid()}"
    part.write_text(config)
    part.replace(made / "config.json")
    if (origin := origin_of(folder)) is not None:
        note_origin(made, origin.model_copy(update={"config": config}))
    return made


def _like(folder: Path, origin: Origin) -> Path:
    name = hashlib.sha256(f"{origin.digest} {origin.config}".encode()).hexdigest()[:24]
    return with_config(folder, origin.config, home() / "cache" / "changed_configs" / name)


def note_origin(folder: Path, origin: Origin) -> None:
    """`folder` is a copy of this artifact."""
    write_whole(_note(folder), origin.model_dump_json())


def origin_of(folder: Path) -> Origin | None:
    """Return what `note_origin` said of it; None if nothing."""
    try:
        return Origin.model_validate_json(_note(folder).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _note(folder: Path) -> Path:
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:24]
    return home() / "cache" / "origins" / f"{name}.json"
