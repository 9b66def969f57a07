"""A host's own copies of folders of the store: compared with what is recorded, fetched anew."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

from infra.errors import CorruptArtifact
from infra.store.store import FileRecord, Store
from infra.store.verified import VerifiedFiles

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
