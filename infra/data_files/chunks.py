"""Files cut into chunks: what is read at once.

A chunk of a text file is about a mebibyte of whole rows; one of Parquet is a row group, one of a
`datasets` folder a record batch.

CSV and TSV have a header. Every cell is text, an empty one is null; its lines end with `\\n`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from infra.data_files import tables
from infra.data_files.files import DataFile, Joined, local_copy, open_file, state_of_source
from infra.data_files.heads import Kind, require_content, suffix_of
from infra.data_files.json_rows import JsonFile, first_json
from infra.data_files.remembered import recall, remember
from infra.data_files.rows import (
    BYTE_ORDER_MARK,
    MOST_ROW,
    BadRow,
    Chunk,
    Reason,
    Rows,
    lines_of,
    require_names,
    row_of,
)
from infra.data_files.tables import ArrowFile, ParquetFile, TableRows, first_arrow, first_parquet
from infra.errors import InputError, TributaryError
from infra.json_text import json_fault

MOST_COLUMNS = 100_000
CHUNK_BYTES = 1 << 20
_HEAD = 1 << 16
"""bytes that tell of what form a file is"""


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
    """Return a tab for TSV; for CSV what the header has: in some countries a semicolon."""
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


class LocalFile(Protocol):
    """A file on this machine, uncompressed."""

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        """`size`: bytes of one, where the file's own form does not say it."""
        ...

    def read(self, chunk: Chunk) -> Rows: ...


_READERS: Mapping[Kind, Callable[[Path, str], LocalFile]] = {
    "json": JsonFile,
    "csv": CsvFile,
    "parquet": ParquetFile,
    "arrow": ArrowFile,
}


class LocalFiles:
    """Reads all rows of some files on this machine, by chunk."""

    def __init__(self, files: Sequence[DataFile], scratch: Path) -> None:
        """Reads every text file once, to find its rows, and not again before it changes; of Parquet
        only what it says of itself. Raises InputError for a file that cannot be read,
        StorageError."""
        self.names = [file.name for file in files]
        self._sources = list(files)
        self._files = [self._opened(file, scratch) for file in files]
        self.chunks = [c for number in range(len(files)) for c in self._chunks_of(number)]
        self.num_rows = sum(chunk.num_rows for chunk in self.chunks)

    def read(self, chunk: Chunk) -> Rows:
        """Raises InputError for a file that cannot be read."""
        with _readable(self.names[chunk.file]):
            return self._files[chunk.file].read(chunk)

    def read_together(self, chunks: Sequence[Chunk]) -> list[Rows]:
        """Raises what `read` raises, and InputError for tables that take more memory together than
        one may: in their files they may be small."""
        found: list[Rows] = []
        left = tables.MOST_DECODED
        for chunk in chunks:
            rows = self.read(chunk)
            left -= rows.num_bytes if isinstance(rows, TableRows) else 0
            if left < 0:
                raise InputError(
                    f"files: {self.names[chunk.file]}: {len(found) + 1} row groups that are read"
                    f" together take more than {tables.MOST_DECODED >> 20} MiB of memory;"
                    " write them anew with fewer rows a group"
                )
            found.append(rows)
        return found

    def _opened(self, file: DataFile, scratch: Path) -> LocalFile:
        path = local_copy(file, scratch)
        with _readable(file.path):
            with path.open("rb") as opened:
                require_content(opened.read(_HEAD), file.kind, file.path)
            return _READERS[file.kind](path, file.path)

    def _chunks_of(self, number: int) -> Iterator[Chunk]:
        with _readable(self.names[number]):
            source, found = self._sources[number], self._files[number].chunks(number, CHUNK_BYTES)
            is_read_whole = source.kind in ("json", "csv")
            yield from _known_chunks(number, source, found) if is_read_whole else found


def _known_chunks(number: int, source: DataFile, read: Iterator[Chunk]) -> Sequence[Chunk]:
    """Return the chunks that were found when this file was read last; else those that `read`
    finds."""
    import numpy as np

    what = f"chunks {CHUNK_BYTES} {_code_of(source.kind)}"
    name, state = source.fs.unstrip_protocol(source.path), state_of_source(source)
    told = recall(what, name, state) if state else None
    if told is not None:
        rows = np.frombuffer(base64.b64decode(told), "<i8").reshape(-1, 4).tolist()
        return [Chunk(number, *row) for row in rows]
    found = list(read)
    if state and state_of_source(source) == state:
        rows = [(c.start, c.num_bytes, c.first_row, c.num_rows) for c in found]
        remember(what, name, state, base64.b64encode(np.array(rows, "<i8").tobytes()).decode())
    return found


@cache
def _code_of(kind: Kind) -> str:
    """The code that cuts files of this kind: another version of it may cut them elsewhere."""
    code = sys.modules[_READERS[kind].__module__].__file__
    return hashlib.sha256(Path(str(code)).read_bytes()).hexdigest()


def first_rows(file: DataFile, most: int) -> tuple[Rows, bool]:
    """The first rows of a file wherever it is, and whether they are all it has.

    Raises InputError for a file that cannot be read.
    """
    with _readable(file.path), open_file(file) as opened:
        head = opened.read(_HEAD)
        require_content(head, file.kind, file.path)
        if file.kind in ("parquet", "arrow"):
            opened.seek(0)
            first = first_parquet if file.kind == "parquet" else first_arrow
            return first(opened, file.path, most)
        whole = io.BufferedReader(Joined(head, opened))
        if file.kind == "csv":
            return first_csv(whole, file.path, most)
        return first_json(whole, head, file.path, most)


@contextmanager
def _readable(name: str) -> Generator[None]:
    """Whatever reading this file raises is an InputError that names it."""
    try:
        yield
    except TributaryError:
        raise
    except Exception as error:  # files, compressions and kinds have errors of their own
        said = str(error) or type(error).__name__
        raise InputError(f"files: {name} cannot be read: {said}") from error
