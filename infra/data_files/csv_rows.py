"""CSV and TSV with a header. Every cell is text, an empty one is null; its lines end with `\\n`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from infra.data_files.kinds import suffix_of
from infra.data_files.rows import (
    BYTE_ORDER_MARK,
    MOST_ROW,
    Chunk,
    Rows,
    lines_of,
    require_names,
    row_of,
)
from infra.data_files.tally import BadRow, Reason
from infra.errors import InputError
from infra.json_text import json_fault

MOST_COLUMNS = 100_000


class _Record(NamedTuple):
    line: int
    """where it begins, from 1"""
    start: int
    """its first byte"""
    end: int
    cells: list[str]
    fault: str


class _Header(NamedTuple):
    names: list[str]
    delimiter: str
    is_padded: bool
    """its names stand between blanks (`question, answer`): so do the cells, which lose them too"""


class CsvRows:
    """Records of one file."""

    def __init__(self, records: list[_Record], header: _Header) -> None:
        self._records = records
        self._names, self._is_padded = header.names, header.is_padded

    def __len__(self) -> int:
        return len(self._records)

    def line(self, index: int) -> int:
        return self._records[index].line

    def row(self, index: int) -> Mapping[str, Any]:
        record = self._records[index]
        if record.fault:
            raise BadRow(Reason.COLUMNS, f"is no row of CSV: {record.fault}")
        if len(record.cells) != len(self._names):
            names = ", ".join(self._names)
            raise BadRow(
                Reason.COLUMNS,
                f"has {len(record.cells)} cells; the header has {len(self._names)}: {names[:200]}",
            )
        given = [cell.replace("\r\n", "\n") for cell in record.cells]
        given = [cell.strip(" ") for cell in given] if self._is_padded else given
        cells = dict(zip(self._names, given, strict=True))
        faults = {
            name: "is not UTF-8; save the file so"
            for name, cell in cells.items()
            if json_fault(cell)
        }
        return row_of({n: cell or None for n, cell in cells.items() if n not in faults}, faults)


class CsvFile:
    """A file on this machine."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        with path.open("rb") as file:
            self._header, self._body = _header(_Lines(file), name)

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        first = last = self._body
        rows = 0
        with self._path.open("rb") as file:
            file.seek(self._body.end)
            for record in _records(_Lines(file, self._body.line, self._body.end), self._header):
                if rows and record.start - first.start >= size:
                    yield Chunk(number, first.start, record.start - first.start, first.line, rows)
                    rows = 0
                first, last, rows = (first if rows else record), record, rows + 1
        if rows:
            yield Chunk(number, first.start, last.end - first.start, first.line, rows)

    def read(self, chunk: Chunk) -> Rows:
        with self._path.open("rb") as file:
            file.seek(chunk.start)
            lines = _Lines(io.BytesIO(file.read(chunk.num_bytes)), chunk.first_row, chunk.start)
        return CsvRows(list(_records(lines, self._header)), self._header)


def first_csv(opened: BinaryIO, name: str, most: int) -> tuple[Rows, bool]:
    lines = _Lines(opened)
    header, _ = _header(lines, name)
    records = list(islice(_records(lines, header), most + 1))
    return CsvRows(records[:most], header), len(records) <= most


class _Lines:
    """The lines of a file as text; it knows where the next one begins."""

    def __init__(self, file: BinaryIO, line: int = 1, at: int = 0) -> None:
        self._file = lines_of(file)
        self.line, self.at = line, at

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        text = line.removeprefix(BYTE_ORDER_MARK) if self.at == 0 else line
        self.line, self.at = self.line + 1, self.at + len(line)
        return text.decode(errors="surrogateescape")


def _header(lines: _Lines, name: str) -> tuple[_Header, _Record]:
    """And the place where what follows it begins. Raises InputError."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith('{"') and first.rstrip().endswith("}"):
        raise InputError(f"files: {name}: its first line is a JSON object; name it .jsonl")
    delimiter = _delimiter(first, name)
    if first.count(delimiter) >= MOST_COLUMNS:
        raise InputError(f"files: {name}: its header names more than {MOST_COLUMNS} columns; is it"
                         " cut into lines?")  # fmt: skip
    try:
        raw = next(_reader([first], delimiter), [])
        is_padded = any(cell != cell.strip() for cell in raw)
        cells = next(_reader([first], delimiter, is_padded), [])
    except csv.Error as error:
        said = "its lines end with a carriage return alone; save it with line feeds"
        said = said if "\r" in first.strip() else f"its header is no row of CSV: {error}"
        raise InputError(f"files: {name}: {said}") from None
    if not cells:
        raise InputError(f"files: {name} is empty; the first row of CSV names the columns")
    names = [cell.strip() or f"column {at}" for at, cell in enumerate(cells, 1)]
    require_names(names, name)
    return _Header(names, delimiter, is_padded), _Record(lines.line, lines.at, lines.at, [], "")


def _delimiter(header: str, name: str) -> str:
    """A tab for TSV; for CSV what the header has: in some countries a semicolon."""
    choices = "\t" if suffix_of(name) == ".tsv" else ",;\t"
    return next((sign for sign in choices if sign in header), choices[0])


def _reader(lines: Iterable[str], delimiter: str, is_padded: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), MOST_ROW))
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=is_padded, strict=True)


def _records(lines: _Lines, header: _Header) -> Iterator[_Record]:
    """Empty lines are none. Raises ValueError for a quote that nobody closed."""
    reader = _reader(lines, header.delimiter, header.is_padded)
    while True:
        line, start = lines.line, lines.at
        try:
            cells, fault = next(reader), ""
        except StopIteration:
            return
        except csv.Error as error:
            cells, fault = [], str(error)
            if "end of data" in fault or "field limit" in fault:
                raise ValueError(f"line {line}: a quote opens here that nothing closes") from None
        if cells or fault:
            yield _Record(line, start, lines.at, cells, fault)
