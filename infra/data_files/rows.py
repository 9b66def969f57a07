"""What a file's rows are to those who read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, cast

from infra.data_files.tally import BadRow, Reason
from infra.errors import InputError
from infra.json_text import json_fault, writable

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""what some programs begin UTF-8 with"""
MOST_ROW = 64 << 20
"""bytes of a line or an element; a small compressed file may hold one that fills the memory, and in
CSV it is a quote that nobody closed"""
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
        """Where it is in its file, from 1."""
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
    """An object without the fields that are null, at any depth: a table cannot say that one has no
    such field in another way."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value)
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return (
        [without_nulls(item) for item in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )
