"""Parquet and Arrow streams. A chunk is a row group, or a record batch of a `datasets` folder.

How much memory one takes is found before it is read. A column names values of a dictionary by their
numbers, so a file of kilobytes may hold a long text a million times, and a column of equal numbers
or nulls takes no room at all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from infra.data_files.parquet_footer import ColumnChunk, Footer
from infra.data_files.rows import BadRow, Chunk, Reason, Rows, require_names, row_of, without_nulls
from infra.errors import InputError
from infra.json_text import DuplicateKey, json_fault, parse_json

MOST_DECODED = 4 << 30
"""bytes of a row group, or of a batch, as it is read: it is in memory whole"""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""bytes of a value by its physical type"""
_LEVELS = 4
"""bytes of a value that say where in its row it is"""
_NUMBER = 8
"""bytes of a row's number, also where it has no column"""
_DICTIONARY = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_COUNTED = {*_DICTIONARY, "PLAIN", "RLE", "BIT_PACKED"}
"""encodings that can be read without repeating a value"""
_PREFIXES = "DELTA_BYTE_ARRAY"
"""each value repeats the beginning of the one before"""
_AT_ONCE = 256 << 20
"""bytes that values of other encodings may take while they are counted"""
_MOST_DEEP = 300
"""parts of a column's path; a list makes two of them"""


def require_bounded(source: Any, metadata: Any, group: int, footer: Footer, name: str) -> None:
    """Raises InputError for a row group that would take more than `MOST_DECODED` bytes, and for one
    that is not what the footer says."""
    said, columns = metadata.row_group(group), footer.columns(group)
    schema = [metadata.schema.column(at) for at in range(len(columns))]
    least = _NUMBER * said.num_rows + sum(map(_least_bytes, columns, schema))
    most = least + sum(map(_most_repeated, columns))
    repeated = [at for at, column in enumerate(columns) if _most_repeated(column)]
    others = [at for at in repeated if not {*columns[at].encodings} <= _COUNTED]
    is_countable = not any(schema[at].max_repetition_level for at in others)
    if most > MOST_DECODED >= least and is_countable:
        most = sum(_bytes_by_batch(source, metadata, group, columns[at]) for at in others)
        if most <= MOST_DECODED:
            texts = [columns[at].path_in_schema for at in repeated if at not in others]
            most = _counted_bytes(source, metadata, group, texts)
    if most > MOST_DECODED:
        raise InputError(
            f"files: {name}: row group {group + 1}, of {said.num_rows} rows, may take more than"
            f" {MOST_DECODED >> 20} MiB of memory; write it anew with fewer rows a group, e.g."
            " row_group_size=10000 of pyarrow's write_table"
        )


def _least_bytes(column: ColumnChunk, schema: Any) -> int:
    width: int = _WIDTHS.get(column.physical_type) or schema.length
    is_text = column.physical_type == "BYTE_ARRAY"
    return column.num_values * (width + _LEVELS) + (
        column.total_uncompressed_size if is_text else 0
    )


def _most_repeated(column: ColumnChunk) -> int:
    """Bytes that repeated texts may take; none of them is longer than the whole column."""
    is_repeated = bool({_PREFIXES, *_DICTIONARY} & {*column.encodings})
    is_text = column.physical_type == "BYTE_ARRAY"
    return column.num_values * column.total_uncompressed_size if is_repeated and is_text else 0


def _bytes_by_batch(source: Any, metadata: Any, group: int, column: ColumnChunk) -> int:
    """Count the bytes of a column outside of lists, read a few rows at a time up to
    `MOST_DECODED`."""
    import pyarrow.parquet as pq

    file, total = pq.ParquetFile(source, metadata=metadata), 0
    rows = max(1, _AT_ONCE // max(1, column.total_uncompressed_size))
    for batch in file.iter_batches(rows, [group], [column.path_in_schema]):
        total += batch.get_total_buffer_size()
        if total > MOST_DECODED:
            break
    return total


def _counted_bytes(source: Any, metadata: Any, group: int, texts: list[str]) -> int:
    """Count the bytes of all columns, of `texts` from the lengths of their dictionaries' values:
    none of these is repeated in memory."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        source, metadata=metadata, read_dictionary=texts, arrow_extensions_enabled=False
    )
    columns = file.read_row_group(group).columns
    return sum(_array_bytes(chunk) for column in columns for chunk in column.chunks)


def _array_bytes(array: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths: Any = pc.call_function("binary_length", [array.dictionary])
        total = pc.call_function("sum", [lengths.take(array.indices)])
        return array.indices.nbytes + (total.as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(_array_bytes(array.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _array_bytes(array.keys) + _array_bytes(array.items)
    return _array_bytes(array.flatten()) if kind.num_fields else array.nbytes


def require_bounded_batch(message: Any, name: str) -> None:
    """Raises InputError for a message of an Arrow stream that would take more."""
    if message.type in ("record batch", "dictionary") and _message_bytes(message) > MOST_DECODED:
        raise InputError(
            f"files: {name}: a compressed batch takes more than {MOST_DECODED >> 20} MiB of memory;"
            " write it anew with fewer rows a batch"
        )


def _message_bytes(message: Any) -> int:
    """Count the bytes of all its buffers, unpacked: each one that is packed begins with its size.
    The message's head is a FlatBuffer: Message{2: RecordBatch, or DictionaryBatch{1: RecordBatch}},
    RecordBatch {2: [(offset, length)], 3: compression}."""
    head, body = message.metadata.to_pybytes(), memoryview(message.body)
    batch = _field(head, struct.unpack_from("<I", head)[0], 2)
    batch += struct.unpack_from("<I", head, batch)[0]
    if message.type == "dictionary":
        batch = _field(head, batch, 1)
        batch += struct.unpack_from("<I", head, batch)[0]
    if not _field(head, batch, 3):
        return len(body)
    at = _field(head, batch, 2)
    at += struct.unpack_from("<I", head, at)[0]
    (count,) = struct.unpack_from("<I", head, at)
    total = 0
    for offset, length in struct.iter_unpack("<qq", head[at + 4 : at + 4 + 16 * count]):
        unpacked = struct.unpack_from("<q", body, offset)[0] if length else 0
        total += max(unpacked, length)
    return total


def _field(head: bytes, table: int, number: int) -> int:
    """Where a table's field is; 0 for one that is not there."""
    known = table - struct.unpack_from("<i", head, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", head, known)[0]:
        return 0
    offset = struct.unpack_from("<H", head, known + 4 + 2 * number)[0]
    return table + offset if offset else 0


class TableRows:
    """Rows of an Arrow table."""

    def __init__(self, table: Any, first_row: int) -> None:
        self._num_rows: int = table.num_rows
        self.num_bytes: int = table.get_total_buffer_size()
        self._columns: list[tuple[str, Any]] = list(
            zip(table.column_names, table.columns, strict=True)
        )
        self._first = first_row
        self._typed = {field.name: field.type for field in table.schema if _is_typed(field.type)}
        self._plain = {field.name for field in table.schema if _is_plain(field.type)}

    def __len__(self) -> int:
        return self._num_rows

    def line(self, index: int) -> int:
        return self._first + index

    def row(self, index: int) -> Mapping[str, Any]:
        # A column is there in every row, also where it holds nothing, as JSON's null.
        row: dict[str, Any] = {}
        faults: dict[str, str] = {}
        for name, column in self._columns:
            try:
                value = self._value(name, column[index])
            except DuplicateKey as error:
                raise BadRow(Reason.NOT_JSON, str(error)) from None
            except (ValueError, OverflowError) as error:  # a date beyond Python's, a broken JSON
                faults[name] = f"is not JSON: {error}"
                continue
            if name not in self._plain and (fault := json_fault(value)):
                faults[name] = fault
            else:
                row[name] = value
        return row_of(row, faults)

    def _value(self, name: str, cell: Any) -> Any:
        try:
            value = cell.as_py(maps_as_pydicts="strict")
        except KeyError as error:
            key = re.search(r"duplicate key was '(.*)'", str(error.args[0]))
            raise DuplicateKey(key.group(1) if key else str(error)) from None
        return _typed(value, self._typed[name]) if name in self._typed else without_nulls(value)


class ParquetFile:
    """A file on this machine."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        opened = _parquet(path, name)
        self._metadata = opened.metadata
        """parsed once: that of many row groups takes longer to read than one of them"""
        require_names(opened.schema_arrow.names, name)
        self._footer = Footer(path, self._metadata, name)

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        metadata, first = self._metadata, 1
        for group in range(metadata.num_row_groups):
            said = metadata.row_group(group)
            if said.num_rows:
                yield Chunk(number, group, said.total_byte_size, first, said.num_rows)
            first += said.num_rows

    def read(self, chunk: Chunk) -> Rows:
        import pyarrow.parquet as pq

        require_bounded(self._path, self._metadata, chunk.start, self._footer, self._name)
        with pq.ParquetFile(self._path, metadata=self._metadata) as file:
            rows = TableRows(file.read_row_group(chunk.start), chunk.first_row)
        self._footer.require_rows(chunk.start, len(rows))
        return rows


class ArrowFile:
    """A stream of messages: the schema, then one for each batch."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    def chunks(self, number: int, size: int) -> Iterator[Chunk]:
        import pyarrow as pa

        first = 1
        with pa.memory_map(str(self._path)) as mapped:
            stream = _arrow_stream(mapped, self._name)
            require_names(stream.schema.names, self._name)
            start = mapped.tell()
            for batch in _batches(mapped, stream, self._name):
                if batch.num_rows:
                    yield Chunk(number, start, mapped.tell() - start, first, batch.num_rows)
                start, first = mapped.tell(), first + batch.num_rows

    def read(self, chunk: Chunk) -> Rows:
        import pyarrow as pa

        with pa.memory_map(str(self._path)) as mapped:
            schema = _arrow_stream(mapped, self._name).schema
            mapped.seek(chunk.start)
            message = pa.ipc.read_message(mapped)
            require_bounded_batch(message, self._name)
            batch = pa.ipc.read_record_batch(message, schema)
        return TableRows(batch, chunk.first_row)


def first_parquet(opened: Any, name: str, most: int) -> tuple[Rows, bool]:
    import pyarrow as pa

    parquet = _parquet(opened, name)
    require_names(parquet.schema_arrow.names, name)
    footer = Footer(opened, parquet.metadata, name)
    groups, num_rows = list[int](), 0
    for group in range(parquet.metadata.num_row_groups):
        if num_rows >= most:
            break
        require_bounded(opened, parquet.metadata, group, footer, name)
        groups.append(group)
        num_rows += parquet.metadata.row_group(group).num_rows
    batches = list(islice(parquet.iter_batches(most, groups), 1))
    table = pa.Table.from_batches(batches, schema=parquet.schema_arrow)
    return TableRows(table, 1), parquet.metadata.num_rows <= most


def first_arrow(opened: Any, name: str, most: int) -> tuple[Rows, bool]:
    import pyarrow as pa

    stream = _arrow_stream(opened, name)
    require_names(stream.schema.names, name)
    batches: list[Any] = []
    for batch in _batches(opened, stream, name):
        batches.append(batch)
        if sum(each.num_rows for each in batches) > most:
            break
    table = pa.Table.from_batches(batches, schema=stream.schema)
    return TableRows(table.slice(0, most), 1), table.num_rows <= most


def _batches(source: Any, stream: Any, name: str) -> Iterator[Any]:
    """Each is looked at before it is read. `stream` reads `source`."""
    import pyarrow as pa

    while True:
        start = source.tell()
        kind = ""
        while kind != "record batch":
            try:
                message = pa.ipc.read_message(source)
            except EOFError:
                return
            require_bounded_batch(message, name)
            kind = message.type
        source.seek(start)
        yield stream.read_next_batch()


def _arrow_stream(source: Any, name: str) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"files: {name} is no Arrow stream: {error}") from error


def _parquet(source: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"files: {name} is no whole Parquet file: {error}") from error
    schema = opened.schema
    if any(schema.column(at).path.count(".") > _MOST_DEEP for at in range(len(schema))):
        raise InputError(f"files: {name}: a column has more than {_MOST_DEEP} levels")
    return opened


def _is_typed(kind: Any) -> bool:
    """Return whether there are values in it, at any depth, that only their type tells how to
    read."""
    if _is_json(kind) or _is_short(kind):
        return True
    return any(_is_typed(kind.field(at).type) for at in range(kind.num_fields))


def _is_json(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.json"


def _is_short(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_float32(kind) or pa.types.is_float16(kind)


def _is_plain(kind: Any) -> bool:
    """Return whether all that it can hold is JSON: texts, whole numbers and truth values, at any
    depth.
    """
    import pyarrow as pa

    if pa.types.is_map(kind) or pa.types.is_dictionary(kind):
        return False
    if kind.num_fields:
        return all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))
    are_leaves = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer)
    return any(each(kind) for each in (*are_leaves, pa.types.is_boolean, pa.types.is_null))


def _typed(value: Any, kind: Any) -> Any:
    """Return a value as somebody wrote it: JSON text read, with its nulls, and a number of 32 or 16
    bits with the digits that it has (0.1, not 0.10000000149); what is around them as elsewhere."""
    import pyarrow as pa

    if value is None:
        return None
    if _is_json(kind):
        return parse_json(value)
    if _is_short(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if pa.types.is_map(kind):
        return {key: _typed(each, kind.item_type) for key, each in value.items()}
    if pa.types.is_struct(kind):
        fields = {field.name: field.type for field in kind.fields}
        read = {key: _typed(each, fields[key]) for key, each in value.items()}
        return {key: each for key, each in read.items() if each is not None}
    if isinstance(value, list):
        return [_typed(each, kind.value_type) for each in cast("list[Any]", value)]
    return value
