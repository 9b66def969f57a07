"""Reads all rows of the files, and sorts them into splits.

Each prompt is kept once: first of the sources that are held out, then of those whose content
decides, then of those that are for training. So no held-out prompt is trained on, whatever file it
is in.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

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
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import choices_of, find_files
from infra.data_files.tally import JUDGED_ROWS, BadRow, Reason, RowTally
from infra.errors import InputError
from infra.json_text import json_bytes, parse_json

SPLITS: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")
_ORDER = ("heldout", "auto", "train")
_SHOWN = 5
"""contaminated rows of a source that are named"""


@dataclass(slots=True)
class Counts:
    """What became of a source's rows."""

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
        """All rows that are left out, but for those of which an earlier one has the prompt."""
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
            raise InputError(f"source {source.name}: files: {', '.join(source.files)} hold no row")
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
        """Whether the row is a problem that no row before it is. Raises BadRow."""
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
    """By a prompt's 64-bit checksum: a number from 0 to 1, of which each split has a part."""
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
