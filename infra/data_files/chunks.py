"""Files cut into chunks: what is read at once.

A chunk of JSONL is about a mebibyte of whole lines; one of Parquet is a row group, one of a
`datasets` folder a record batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

from infra.data_files.bad_row import BadRow, Reason
from infra.data_files.files import DataFile, local_copy, open_file
from infra.data_files.rows import Chunk, Rows, row_of, without_nulls
from infra.errors import InputError, TributaryError
from infra.json_text import DuplicateKey, json_fault, parse_loosely

CHUNK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""what some programs begin UTF-8 with"""


class JsonRows:
    """Lines of JSONL."""

    def __init__(self, text: bytes, first_line: int) -> None:
        lines = enumerate(_lines(text, is_start=first_line == 1), first_line)
        self._lines = [(number, line) for number, line in lines if not _is_empty(line)]

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> int:
        return self._lines[index][0]

    def row(self, index: int) -> Mapping[str, Any]:
        return _json_row(self._lines[index][1])


class TableRows:
    """Rows of an Arrow table."""

    def __init__(self, table: Any, first_row: int) -> None:
        self._table = table
        self._first = first_row

    def __len__(self) -> int:
        return self._table.num_rows

    def line(self, index: int) -> int:
        return self._first + index

    def row(self, index: int) -> Mapping[str, Any]:
        # A column is there in every row, also where it holds nothing, as JSON's null.
        row = self._table.slice(index, 1).to_pylist()[0]
        return _row({name: without_nulls(value) for name, value in row.items()})


def _json_row(text: bytes) -> Mapping[str, Any]:
    try:
        found, is_whole = parse_loosely(text)
    except DuplicateKey as error:
        raise BadRow(Reason.NOT_JSON, str(error)) from None
    except ValueError as error:  # of JSON or of UTF-8
        raise BadRow(Reason.NOT_JSON, f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRow(Reason.NOT_JSON, "is no JSON object")
    row = cast("dict[str, Any]", found)
    if is_whole:
        return row
    return _row(row)


def _row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    faults = {name: fault for name, value in row.items() if (fault := json_fault(value))}
    return row_of({name: value for name, value in row.items() if name not in faults}, faults)


class LocalFiles:
    """All rows of some files on this machine, by chunk."""

    def __init__(self, files: Sequence[DataFile], scratch: Path) -> None:
        """Reads every JSONL file once, to find its lines; of Parquet only what it says of itself.
        Raises InputError for a file that cannot be read, StorageError."""
        self.names = [file.name for file in files]
        self._kinds = [file.kind for file in files]
        self._paths = [local_copy(file, scratch) for file in files]
        self.chunks = [c for number in range(len(files)) for c in self._chunks_of(number)]
        self.num_rows = sum(chunk.num_rows for chunk in self.chunks)

    def read(self, chunk: Chunk) -> Rows:
        """Raises InputError for a file that cannot be read."""
        path = self._paths[chunk.file]
        with _readable(self.names[chunk.file]):
            if self._kinds[chunk.file] == "parquet":
                return TableRows(_parquet(path).read_row_group(chunk.start), chunk.first_row)
            if self._kinds[chunk.file] == "arrow":
                return TableRows(_record_batch(path, chunk), chunk.first_row)
            with path.open("rb") as file:
                file.seek(chunk.start)
                return JsonRows(file.read(chunk.num_bytes), chunk.first_row)

    def _chunks_of(self, number: int) -> Iterator[Chunk]:
        find = {"parquet": _row_groups, "arrow": _record_batches, "jsonl": _line_chunks}
        with _readable(self.names[number]):
            yield from find[self._kinds[number]](number, self._paths[number])


def first_rows(file: DataFile, most: int) -> tuple[Rows, bool]:
    """The first rows of a file wherever it is, and whether they are all it has.

    Raises InputError for a file that cannot be read.
    """
    with _readable(file.path), open_file(file) as opened:
        if file.kind == "parquet":
            return _first_of_parquet(file.path, opened, most)
        if file.kind == "arrow":
            return _first_of_arrow(file.path, opened, most)
        lines = list(islice(opened, most + 1))
        return JsonRows(b"".join(lines[:most]), 1), len(lines) <= most


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


def _first_of_parquet(path: str, opened: Any, most: int) -> tuple[Rows, bool]:
    import pyarrow as pa

    parquet = _parquet(opened, path)
    batches = list(islice(parquet.iter_batches(batch_size=most), 1))
    table = pa.Table.from_batches(batches, schema=parquet.schema_arrow)
    return TableRows(table, 1), parquet.metadata.num_rows <= most


def _first_of_arrow(path: str, opened: Any, most: int) -> tuple[Rows, bool]:
    import pyarrow as pa

    stream = _arrow_stream(opened, path)
    batches: list[Any] = []
    for batch in stream:
        batches.append(batch)
        if sum(each.num_rows for each in batches) > most:
            break
    table = pa.Table.from_batches(batches, schema=stream.schema)
    return TableRows(table.slice(0, most), 1), table.num_rows <= most


def _line_chunks(number: int, path: Path) -> Iterator[Chunk]:
    at, line = 0, 1
    with path.open("rb") as file:
        while text := file.read(CHUNK_BYTES):
            if not text.endswith(b"\n"):
                text += file.readline()
            num_lines = text.count(b"\n") + (not text.endswith(b"\n"))
            rows = sum(not _is_empty(each) for each in _lines(text, is_start=at == 0))
            if rows:
                yield Chunk(number, at, len(text), line, rows)
            at, line = at + len(text), line + num_lines


def _lines(text: bytes, *, is_start: bool) -> list[bytes]:
    """`is_start`: the text is the start of a file."""
    return (text.removeprefix(_BYTE_ORDER_MARK) if is_start else text).split(b"\n")


def _is_empty(line: bytes) -> bool:
    return not line or line.isspace()


def _row_groups(number: int, path: Path) -> Iterator[Chunk]:
    metadata, first = _parquet(path).metadata, 1
    for group in range(metadata.num_row_groups):
        said = metadata.row_group(group)
        if said.num_rows:
            yield Chunk(number, group, said.total_byte_size, first, said.num_rows)
        first += said.num_rows


def _record_batches(number: int, path: Path) -> Iterator[Chunk]:
    """A stream of messages: the schema, then one for each batch."""
    import pyarrow as pa

    first = 1
    with pa.memory_map(str(path)) as mapped:
        stream = _arrow_stream(mapped, str(path))
        start = mapped.tell()
        for batch in stream:
            if batch.num_rows:
                size = mapped.tell() - start
                yield Chunk(number, start, size, first, batch.num_rows)
            start, first = mapped.tell(), first + batch.num_rows


def _record_batch(path: Path, chunk: Chunk) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        schema = _arrow_stream(mapped, str(path)).schema
        mapped.seek(chunk.start)
        return pa.ipc.read_record_batch(pa.ipc.read_message(mapped), schema)


def _arrow_stream(source: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"files: {name} is no Arrow stream: {error}") from error


def _parquet(source: Any, name: str = "") -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"files: {name or source} is no Parquet file: {error}") from error
