"""Reads all rows of the files once, sorts them into splits, and keeps the good ones beside each
other on this machine, with their places by source and split; bad ones are counted.

    $TRIBUTARY_HOME/cache/prompts/KEY/
        rows.jsonl    one row a line: its id, where it was, the columns that are used
        places.npz    first byte and length of its line, by source and split
        counts.json   what became of the rows

The key is made of the settings and the files, so that every process of a machine shares one.
Each prompt is kept once: first of the sources that are held out, then of those whose content
decides, then of those that are for training. So no held-out prompt is trained on, whatever file it
is in.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from curricula.prompt_files.contamination import HeldOutWords
from curricula.prompt_files.prompt import (
    Prompt,
    checksum,
    contradict,
    id_of,
    read_prompt,
    reference_checksum,
    used_columns,
)
from curricula.prompt_files.spec import PromptFiles, PromptSource, Shares
from engines.types import Split
from infra.code.digest import digest_of
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import choices_of, find_files, fingerprint, modified
from infra.data_files.rows import JUDGED_ROWS, BadRow, Reason, RowTally
from infra.errors import InputError
from infra.home import home
from infra.json_text import json_bytes, parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SPLITS: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")
_ORDER = ("heldout", "auto", "train")
_SHOWN = 5
"""contaminated rows of a source that are named"""
_FORM = 8
"""of the folder's files; raise it when they change, or what is read of a row"""
_UNUSED_S = 30 * 24 * 3600.0
"""a folder that nobody opened for so long is removed"""
_ROWS, _PLACES, _COUNTS = "rows.jsonl", "places.npz", "counts.json"


@dataclass(slots=True)
class Counts:
    """Counts what became of a source's rows."""

    source: str
    read: int = 0
    bad: dict[str, int] = field(default_factory=dict[str, int])
    """by reason"""
    named: list[str] = field(default_factory=list[str])
    """the first bad ones of each reason"""
    duplicates: int = 0
    """rows whose prompt an earlier row has"""
    contradicting: int = 0
    """of these, rows with another reference than the earlier one"""
    contradictions: list[str] = field(default_factory=list[str])
    """the first of these"""
    contaminated: int = 0
    """rows for training that share words with a held-out one"""
    hits: list[str] = field(default_factory=list[str])
    """the first contaminated ones"""
    splits: dict[str, int] = field(default_factory=dict[str, int])
    """rows that are left, by split"""
    choices: list[str] = field(default_factory=list[str])
    """which part is read of a folder that holds more"""
    layouts: dict[str, int] = field(default_factory=dict[str, int])
    """good rows by what they look like"""
    unread: dict[str, int] = field(default_factory=dict[str, int])
    """good rows by the columns in them that nothing reads"""

    @property
    def tally(self) -> RowTally:
        """Count all rows that are left out, but for those of which an earlier one has the
        prompt."""
        bad = Counter(self.bad)
        if self.contaminated:
            bad[Reason.CONTAMINATED] = self.contaminated
        return RowTally(self.read, bad, [*self.named, *self.hits])

    def leave_out(self, where: str, error: BadRow) -> None:
        """A row that was good until more was known."""
        self.bad[error.reason] = self.bad.get(error.reason, 0) + 1
        if self.bad[error.reason] <= _SHOWN:
            self.named.append(f"{where}: {error}")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Builder:
    """Sorts rows into splits and writes them to one file."""

    def __init__(self, settings: PromptFiles, rows: BinaryIO, copies: Path) -> None:
        self._settings = settings
        self._rows = rows
        self._copies = copies
        self._known: dict[int, int] = {}
        """checksums of references by those of prompts; 0 for no reference"""
        self.places = {
            f"{number}/{split}": array("q")
            for number in range(len(settings.sources))
            for split in SPLITS
        }
        """first byte and length of each row, one after the other, by source and split"""
        self.counts = [Counts(source.name) for source in settings.sources]

    def read_all(self) -> None:
        """Raises InputError for a source without a row, TrainingStopped for too many bad ones."""
        sources = list(enumerate(self._settings.sources))
        for wanted in _ORDER:
            for number, source in sources:
                if source.split == wanted:
                    self._read(number, source)
        for number, _ in sources:
            self._count_splits(number, self.places)

    def decontaminated(self, written: Path) -> Mapping[str, array[int]]:
        """The places without rows for training that share words with a held-out one."""
        held_out = HeldOutWords(self._settings.decontaminate)
        for number in range(len(self.counts)):
            for _, where, prompt in self._written(written, number, "heldout"):
                held_out.add(where, prompt.text_asked)
        kept = dict(self.places)
        for number, counts in enumerate(self.counts):
            for split in SPLITS[:-1]:
                kept[f"{number}/{split}"] = self._clean(written, number, split, held_out, counts)
            self._count_splits(number, kept)
        return kept

    def _clean(
        self, written: Path, number: int, split: Split, held_out: HeldOutWords, counts: Counts
    ) -> array[int]:
        kept = array("q")
        for place, where, prompt in self._written(written, number, split):
            shared = held_out.shared_with(prompt.text_asked)
            if shared is None:
                kept.extend(place)
                continue
            counts.contaminated += 1
            if len(counts.hits) < _SHOWN:
                run, other = shared
                counts.hits.append(f"{where}: shares {run[:160]!r} with {other}, which is held out")
        return kept

    def _written(
        self, file: Path, number: int, split: Split
    ) -> Iterator[tuple[tuple[int, int], str, Prompt]]:
        places = self.places[f"{number}/{split}"]
        with file.open("rb") as rows:
            for start, length in zip(places[::2], places[1::2], strict=True):
                rows.seek(start)
                found = parse_json(rows.read(length))
                prompt = read_prompt(found["row"], self._settings.sources[number])
                yield (start, length), found["where"], prompt

    def _read(self, number: int, source: PromptSource) -> None:
        found = find_files(source.files)
        self.counts[number].choices = choices_of(found)
        files = LocalFiles(found, self._copies)
        if not files.num_rows:
            raise InputError(f"source {source.name}: files: no row in {', '.join(source.files)}")
        tally, counts, ids = RowTally(), self.counts[number], dict[str, int]()
        for chunk in files.chunks:
            rows = files.read(chunk)
            for index in range(len(rows)):
                where = f"{files.names[chunk.file]}:{rows.line(index)}"
                try:
                    is_new = self._take(number, source, rows.row(index), where, ids)
                except BadRow as error:
                    tally.left_out(where, error)
                    if tally.read >= JUDGED_ROWS:  # before that, all that is bad is to be counted
                        tally.judge(source.files, files.num_rows, source.max_bad_share)
                else:
                    tally.read += 1
                    counts.duplicates += not is_new
        tally.judge(source.files, files.num_rows, source.max_bad_share)
        counts.read, counts.bad, counts.named = tally.read, dict(tally.bad), tally.named

    def _take(
        self,
        number: int,
        source: PromptSource,
        row: Mapping[str, Any],
        where: str,
        ids: dict[str, int],
    ) -> bool:
        """Return whether the row is a problem that no row before it is. Raises BadRow."""
        prompt = read_prompt(row, source)
        self._note(number, prompt)
        content, its_id = checksum(prompt.text), id_of(row, source, prompt.text)
        if source.columns.id and ids.setdefault(its_id, content) != content:
            raise BadRow(Reason.SAME_ID, f"another row with another prompt has the id {its_id!r}")
        if content in self._known:
            self._note_contradiction(number, where, prompt, self._known[content])
            return False
        line = _line({"id": its_id, "where": where, "row": used_columns(row, prompt)})
        self._known[content] = reference_checksum(prompt)
        start = self._rows.tell()
        self._rows.write(line)
        split = split_of(content, source, self._settings.shares)
        self.places[f"{number}/{split}"].extend((start, len(line)))
        return True

    def _note(self, number: int, prompt: Prompt) -> None:
        counts = self.counts[number]
        counts.layouts[prompt.layout] = counts.layouts.get(prompt.layout, 0) + 1
        for name in prompt.unread:
            counts.unread[name] = counts.unread.get(name, 0) + 1

    def _note_contradiction(self, number: int, where: str, prompt: Prompt, earlier: int) -> None:
        if not contradict(reference_checksum(prompt), earlier):
            return
        counts = self.counts[number]
        counts.contradicting += 1
        if len(counts.contradictions) < _SHOWN:
            counts.contradictions.append(f"{where} has {prompt.reference!r:.80}")

    def _count_splits(self, number: int, places: Mapping[str, array[int]]) -> None:
        self.counts[number].splits = {s: len(places[f"{number}/{s}"]) // 2 for s in SPLITS}


def split_of(content: int, source: PromptSource, shares: Shares) -> Split:
    """Choose the split by a prompt's 64-bit checksum: a number from 0 to 1, of which each split has
    a part."""
    if source.split == "heldout":
        return "heldout"
    at = content / 2**64
    if source.split == "train":  # the same parts of what is not held out
        at = shares.heldout + at * (1 - shares.heldout)
    if at < shares.heldout:
        return "heldout"
    if at >= 1 - shares.distill and shares.distill:
        return "distill"
    if at >= 1 - shares.distill - shares.sft and shares.sft:
        return "sft"
    return "rl"


def _line(value: dict[str, Any]) -> bytes:
    try:
        return json_bytes(value) + b"\n"
    except TypeError as error:
        raise BadRow(Reason.COLUMNS, f"holds a value that is no JSON: {error}") from None
    except RecursionError:
        raise BadRow(Reason.COLUMNS, "is nested too deeply") from None


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
