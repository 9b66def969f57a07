"""Folders that several hosts fill: each puts its own files into the store, and the job its own.

    the job      says where a folder's files will be (`note_destination`)
    other hosts  put theirs there (`Destination.upload`); the job notes them (`note_elsewhere`)
    the job      puts its own there, and writes the manifest of all (`elsewhere`)

Both notes are files beside the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from infra.config import Config
from infra.store.store import FileRecord, Store

_RECORDS = TypeAdapter(list[FileRecord])


class Destination(Config):
    """Example: root="s3://bucket/store", path="checkpoints/rl/3f09c2b1a7d4/step-00000005-a1" """

    root: str
    """of the store"""
    path: str
    """of the folder in it"""
    inside: str = ""
    """which folder in that one is meant, e.g. "trainer" """

    def upload(self, local: Path) -> list[FileRecord]:
        """Return a local folder's files, named as in the whole folder. Raises StorageError."""
        inside = f"{self.inside}/" if self.inside else ""
        files = Store(self.root).upload_folder(local, f"{self.path}/{self.inside}".rstrip("/"))
        return [file.model_copy(update={"path": f"{inside}{file.path}"}) for file in files]


def note_destination(folder: Path, destination: Destination) -> None:
    """`folder` will be there; nothing of it is elsewhere so far."""
    forget_notes(folder)
    _destination(folder).write_text(destination.model_dump_json())


def destination_of(folder: Path) -> Destination | None:
    """Return where a folder will be, or one in such a folder; None if nobody said so."""
    for whole in (folder, folder.parent):
        if (note := _destination(whole)).exists():
            found = Destination.model_validate_json(note.read_bytes())
            inside = folder.relative_to(whole).as_posix()
            return found.model_copy(update={"inside": "" if inside == "." else inside})
    return None


def note_elsewhere(folder: Path, destination: Destination, files: Sequence[FileRecord]) -> None:
    """Other hosts have put these files there, for `folder`, of which this is the destination."""
    whole = folder.parent if destination.inside else folder
    _elsewhere(whole).write_bytes(_RECORDS.dump_json([*elsewhere(whole), *files]))


def elsewhere(folder: Path) -> list[FileRecord]:
    """Files of `folder` that other hosts have put into the store."""
    note = _elsewhere(folder)
    return _RECORDS.validate_json(note.read_bytes()) if note.exists() else []


def forget_notes(folder: Path) -> None:
    """The folder is complete."""
    _destination(folder).unlink(missing_ok=True)
    _elsewhere(folder).unlink(missing_ok=True)


def _destination(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.destination.json")


def _elsewhere(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.elsewhere.json")
