"""What a file's rows are to those who read them: how many were read, and which were left out and
why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO, Protocol, cast

from infra.errors import InputError, TrainingStopped
from infra.json_text import json_fault, writable
from infra.store.manifest import StageWarning

JUDGED_ROWS = 1000
"""rows after which their share of bad ones is looked at"""
_NAMED = 5
"""bad rows of each reason that are named"""
_MANY = 0.05
"""share of rows that were left out, from which it is a warning"""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""what some programs begin UTF-8 with"""
MOST_ROW = 64 << 20
"""bytes of a line or an element; a small compressed file may hold one that fills the memory, and in
CSV it is a quote that nobody closed"""


@dataclass(slots=True)
class RowTally:
    """What became of rows that were read once each."""

    read: int = 0
    bad: Counter[str] = field(default_factory=Counter[str])
    """by reason"""
    named: list[str] = field(default_factory=list[str])
    """the first of each reason: file, line and what is wrong"""

    @property
    def num_bad(self) -> int:
        return self.bad.total() - self.num_contaminated - self.bad[Reason.UNDECIDED]

    @property
    def num_contaminated(self) -> int:
        """Rows that are fine, but share words with what is held out."""
        return self.bad[Reason.CONTAMINATED]

    def left_out(self, where: str, error: BadRow) -> None:
        self.read += 1
        self.bad[error.reason] += 1
        if self.bad[error.reason] <= _NAMED:
            self.named.append(f"{where}: {error}")

    def judge(self, files: Sequence[str], num_rows: int, max_bad_share: float) -> None:
        """Raises TrainingStopped if more than this share of the rows are bad: of those read, of
        1,000 at least, or of all where there are fewer."""
        judged = max(self.read, min(JUDGED_ROWS, num_rows))
        if self.num_bad <= max_bad_share * judged:
            return
        reasons = ", ".join(f"{n} {why}" for why, n in self.bad.most_common())
        first = "\n".join(f"  {line}" for line in by_fault(self.named))
        which = "" if self.read == num_rows else "first "
        raise TrainingStopped(
            f"{self.num_bad} of the {which}{self.read} rows of {', '.join(files)} cannot be used"
            f" ({reasons}), more than max_bad_share {max_bad_share:g}; correct them, or raise"
            f" max_bad_share. The first (`tributary preview --json --read N` has all):\n{first}"
        )

    @property
    def said(self) -> str:
        """What is wrong with the first bad rows, in one line."""
        return "; ".join(by_fault(self.named))

    def as_json(self) -> dict[str, Any]:
        return {"read": self.read, "bad": dict(self.bad), "named": list(self.named)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RowTally:
        return RowTally(value["read"], Counter(value["bad"]), list(value["named"]))


def by_fault(named: Iterable[str]) -> list[str]:
    """Put lines `place: fault` of one fault together: `a.jsonl:1, a.jsonl:2: has no prompt`."""
    places: dict[str, list[str]] = {}
    for line in named:
        place, _, fault = line.partition(": ")
        places.setdefault(fault, []).append(place)
    return [f"{', '.join(each)}: {fault}" for fault, each in places.items()]


def many_left_out(tallies: Sequence[RowTally]) -> Iterator[StageWarning]:
    """Yield a warning if many of the rows that a stage read were left out."""
    bad = sum((each.bad for each in tallies), start=Counter[str]())
    read = sum(each.read for each in tallies)
    if bad.total() <= _MANY * read:
        return
    named = [line for each in tallies for line in each.named]
    reasons = ", ".join(f"{count} {reason}" for reason, count in bad.most_common())
    yield StageWarning(
        what=f"{bad.total()} of the {read} rows that were read were left out",
        cause=f"{reasons}; e.g. {'; '.join(by_fault(named)[:2])}",
        advice="correct them, or say which columns hold what; `tributary preview` shows it",
        figures={"left_out": bad.total(), "read": read},
    )


class Reason(StrEnum):
    """What bad rows are counted by."""

    NOT_JSON = "not_json"
    COLUMNS = "columns"
    """a column is missing or holds something else"""
    MESSAGES = "messages"
    """a message cannot be read, or their order makes no conversation"""
    TOOLS = "tools"
    """tools or calls of tools cannot be read, or the model's template writes none"""
    REFERENCE = "reference"
    """what an answer is compared with is empty, or lacks what its pattern looks for"""
    SAME_ID = "same_id"
    """another row with another prompt has its id"""
    TEMPLATE = "template"
    """the model's chat template refuses the conversation"""
    TOO_LONG = "too_long"
    """longer than the model's context"""
    NOTHING_TRAINED = "nothing_trained"
    """the loss mask is empty"""
    UNDECIDED = "undecided"
    """says of no answer that it is better than another: left out, and not counted as bad"""
    CONTAMINATED = "contaminated"
    """shares words with a held-out row: left out, and not counted as bad"""


class BadRow(Exception):
    """The row is left out; the text says what is wrong with it."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


MOST_EMPTY = 1 << 20
"""empty lines that follow one another; a small compressed file may hold hours of them"""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Lines as the file itself gives them. Raises ValueError for one that is too long, and for more
    than a million empty ones in a row."""
    empty = 0
    while line := file.readline(MOST_ROW + 1):
        require_size(len(line))
        empty = empty + 1 if line in (b"\n", b"\r\n") else 0
        if empty > MOST_EMPTY:
            raise ValueError("more than a million lines in a row are empty")
        yield line


def require_names(names: Sequence[str], file: str) -> None:
    """Raises InputError for two columns of one name."""
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise InputError(f"files: {file}: two columns have one name, {repeated!r}; rename one")


def require_size(num_bytes: int) -> None:
    if num_bytes > MOST_ROW:
        raise ValueError(f"a row has more than {MOST_ROW >> 20} MiB; is it cut into lines?")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where rows of one file are."""

    file: int
    """its place among the files"""
    start: int
    """first byte of lines, of array elements and of a record batch; row group of Parquet"""
    num_bytes: int
    """uncompressed"""
    first_row: int
    """line in JSONL and CSV, element of an array, row in Parquet; from 1"""
    num_rows: int
    """empty lines are none"""


class Rows(Protocol):
    """The rows of a chunk, parsed when they are asked for."""

    def __len__(self) -> int: ...

    def line(self, index: int) -> int:
        """Return where it is in its file, from 1."""
        ...

    def row(self, index: int) -> Mapping[str, Any]:
        """Raises BadRow."""
        ...


class RowWithFaults(Mapping[str, Any]):
    """A row of which some columns hold what is no JSON: who reads one of them finds a bad row, and
    who reads none of them is not disturbed."""

    def __init__(self, columns: Mapping[str, Any], faults: Mapping[str, str]) -> None:
        """`faults` say what is wrong with columns that are not in `columns`."""
        self._columns = columns
        self.faults = faults

    def __getitem__(self, name: str) -> Any:
        """Raises BadRow."""
        if name in self.faults:
            raise BadRow(Reason.COLUMNS, f"{name}: {self.faults[name]}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._columns
        yield from self.faults

    def __len__(self) -> int:
        return len(self._columns) + len(self.faults)

    def __contains__(self, name: object) -> bool:
        return name in self._columns or name in self.faults


def row_without_faults(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row, with what is no JSON in it set aside."""
    columns: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, value in row.items():
        if fault := json_fault(name) or json_fault(value):
            faults[writable(name)] = fault
        else:
            columns[name] = value
    return row_of(columns, faults)


def row_of(columns: Mapping[str, Any], faults: Mapping[str, str]) -> Mapping[str, Any]:
    return RowWithFaults(columns, faults) if faults else columns


def without_nulls(value: Any) -> Any:
    """Return an object without the fields that are null, at any depth: a table cannot say that one
    has no such field in another way."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value)
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return (
        [without_nulls(item) for item in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )
