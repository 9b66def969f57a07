"""Local files compared with their checksums, once a change; and a host's own copies of folders."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from infra.errors import CorruptArtifact
from infra.home import write_whole
from infra.store.store import FileRecord, OnProgress, Store, check_file


class VerifiedFiles:
    """Remembers size and modification time of verified files, a note a folder, in `notes`.

    Without a folder for notes everything is hashed each time.
    """

    def __init__(self, notes: Path | None) -> None:
        self._notes = notes

    def check(
        self, folder: Path, files: Sequence[FileRecord], origin: str, on_progress: OnProgress
    ) -> None:
        """Compare `folder` with the records. Raises CorruptArtifact naming the file."""

        def check(file: FileRecord) -> None:
            check_file(folder / file.path, file, origin, on_progress)

        known = _read(self._note(folder))
        changed = [f for f in files if known.get(f.path) != _stamp(folder / f.path, f)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(check, changed))
        if changed:
            self.note(folder, changed)

    def note(self, folder: Path | None, files: Sequence[FileRecord]) -> None:
        """Remember local files that are as their records say: they were hashed on their way."""
        note = self._note(folder) if folder is not None else None
        if folder is not None and note is not None:
            stamps = {f.path: _stamp(folder / f.path, f) for f in files}
            write_whole(note, json.dumps(_read(note) | stamps))

    def _note(self, folder: Path) -> Path | None:
        if self._notes is None:
            return None
        return self._notes / f"{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}.json"


def _stamp(path: Path, record: FileRecord) -> list[int | str]:
    """Return what must be unchanged for a verification to hold; empty for a missing file."""
    try:
        state = path.stat()
    except OSError:
        return []
    return [state.st_size, state.st_mtime_ns, record.sha256]


def _read(note: Path | None) -> dict[str, list[int | str]]:
    try:
        return json.loads(note.read_text()) if note is not None else {}
    except (OSError, ValueError):
        return {}


_log = logging.getLogger(__name__)


def verified_copy(
    store: Store, path: str, files: list[FileRecord], copy: Path, verified: VerifiedFiles | None
) -> Path:
    """The folder itself where the store is local, else a copy, compared with the records. A copy
    that was damaged since is fetched again."""
    verified, place = verified or VerifiedFiles(None), store.local_path(path)
    if place is not None:
        verified.check(place, files, store.url(path), store.on_progress)
        return place
    if copy.exists():
        try:
            verified.check(copy, files, store.url(path), store.on_progress)
            return copy
        except CorruptArtifact as error:
            _log.warning("fetching a damaged copy again: %s", error)
            _remove(copy)
    _fetch(store, path, files, copy)
    verified.check(copy, files, store.url(path), store.on_progress)
    return copy


def _fetch(store: Store, path: str, files: list[FileRecord], copy: Path) -> None:
    """Two stages may want the same at once: each fetches, the first one's stays."""
    draft = _beside(copy)
    store.download_folder(path, files, draft)
    try:
        draft.rename(copy)
    except OSError:
        shutil.rmtree(draft)


def _remove(copy: Path) -> None:
    """At once, though somebody may be reading it."""
    away = _beside(copy)
    with suppress(FileNotFoundError):  # somebody else did
        copy.rename(away)
    shutil.rmtree(away, ignore_errors=True)


def _beside(copy: Path) -> Path:
    return copy.with_name(f"{copy.name}.{time.monotonic_ns():x}")
