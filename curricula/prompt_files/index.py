"""All rows of the files, read once: the good ones beside each other on this machine, with their
places by source and split; the bad ones counted.

    $TRIBUTARY_HOME/cache/prompts/KEY/
        rows.jsonl    one row a line: its id, where it was, the columns that are used
        places.npz    first byte and length of its line, by source and split
        counts.json   what became of the rows

The key is made of the settings and the files, so that every process of a machine shares one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curricula.prompt_files.index_builder import Builder, Counts
from curricula.prompt_files.spec import PromptFiles
from engines.types import Split
from infra.code.digest import digest_of
from infra.data_files.files import find_files, fingerprint, modified
from infra.errors import InputError
from infra.home import home
from infra.json_text import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FORM = 7
"""of the folder's files; raise it when they change, or what is read of a row"""
_UNUSED_S = 30 * 24 * 3600.0
"""a folder that nobody opened for so long is removed"""
_ROWS, _PLACES, _COUNTS = "rows.jsonl", "places.npz", "counts.json"


class RowIndex:
    """Rows by source, split and place."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        with np.load(folder / _PLACES) as places:
            self._places: dict[str, NDArray[np.int64]] = {name: places[name] for name in places}
        self.counts = [Counts(**each) for each in json.loads((folder / _COUNTS).read_text())]
        # Kept open: a later cleaning cannot take it away.
        self._rows = os.open(folder / _ROWS, os.O_RDONLY)
        weakref.finalize(self, os.close, self._rows)
        os.utime(folder)

    def num_rows(self, source: int, split: Split) -> int:
        return len(self._places[f"{source}/{split}"])

    def longer_than(self, source: int, split: Split, num_bytes: int) -> list[int]:
        """Places of rows whose line is longer."""
        lengths = self._places[f"{source}/{split}"][:, 1]
        return [int(place) for place in (lengths > num_bytes).nonzero()[0]]

    def leave_out(self, source: int, split: Split, places: Sequence[int]) -> None:
        """The rows after them move up."""
        import numpy as np

        name = f"{source}/{split}"
        self._places[name] = np.delete(self._places[name], places, axis=0)
        self.counts[source].splits[split] -= len(places)

    def row(self, source: int, split: Split, place: int) -> tuple[str, str, dict[str, Any]]:
        """Id, where it was, and columns."""
        start, length = self._places[f"{source}/{split}"][place].tolist()
        found = parse_json(os.pread(self._rows, length, start))
        return found["id"], found["where"], found["row"]


def open_index(settings: PromptFiles) -> RowIndex:
    """Reads the files if this machine has not yet. Raises InputError, StorageError, and
    TrainingStopped for too many bad rows."""
    folder = home() / "cache/prompts" / _key(settings)
    if not _is_whole(folder):
        _make(settings, folder)
    return RowIndex(folder)


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in (_ROWS, _PLACES, _COUNTS))


def _key(settings: PromptFiles) -> str:
    files: list[Any] = []
    for source in settings.sources:
        try:
            found = [modified(file) for file in find_files(source.files)]
            files.append([fingerprint(source.files), found])
        except InputError as error:
            raise InputError(f"source {source.name}: {error}") from error
    return digest_of([_FORM, settings.model_dump(mode="json"), files])[:16]


def _make(settings: PromptFiles, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _forget_unused(folder.parent)
    draft = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        with (draft / _ROWS).open("wb") as rows:
            builder = Builder(settings, rows, draft / "copies")
            builder.read_all()
        shutil.rmtree(draft / "copies", ignore_errors=True)
        places = builder.places
        if settings.decontaminate:
            places = builder.decontaminated(draft / _ROWS)
        _save(draft, places, builder.counts)
        if not _is_whole(folder):
            _remove(folder)
        try:
            draft.rename(folder)
        except OSError:  # another process made the same one first
            if not _is_whole(folder):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _save(folder: Path, places: Mapping[str, Sequence[int]], counts: Sequence[Counts]) -> None:
    import numpy as np

    arrays = {name: np.asarray(each, np.int64).reshape(-1, 2) for name, each in places.items()}
    with (folder / _PLACES).open("wb") as file:
        np.savez(file, **arrays)  # pyrefly: ignore[bad-argument-type]
    (folder / _COUNTS).write_text(json.dumps([each.as_json() for each in counts], indent=1))


def _forget_unused(folder: Path) -> None:
    for old in folder.iterdir():
        with suppress(FileNotFoundError):  # another process's draft, which has its own name by now
            if time.time() - old.stat().st_mtime > _UNUSED_S:
                _remove(old)


def _remove(folder: Path) -> None:
    """At once for who looks for it by its name: half of it is of no use."""
    aside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    with suppress(OSError):  # another process was first
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
