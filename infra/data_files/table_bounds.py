"""How much memory a row group of Parquet or a batch of an Arrow stream takes, found before it is
read.

A column names values of a dictionary by their numbers, so a file of kilobytes may hold a long text
a million times, and a column of equal numbers or nulls takes no room at all.
"""

from __future__ import annotations

import struct
from typing import Any

from infra.data_files.parquet_footer import ColumnChunk, Footer
from infra.errors import InputError

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
    """Of a column outside of lists, read a few rows at a time up to `MOST_DECODED`."""
    import pyarrow.parquet as pq

    file, total = pq.ParquetFile(source, metadata=metadata), 0
    rows = max(1, _AT_ONCE // max(1, column.total_uncompressed_size))
    for batch in file.iter_batches(rows, [group], [column.path_in_schema]):
        total += batch.get_total_buffer_size()
        if total > MOST_DECODED:
            break
    return total


def _counted_bytes(source: Any, metadata: Any, group: int, texts: list[str]) -> int:
    """Of all columns, of `texts` from the lengths of their dictionaries' values: none of these is
    repeated in memory."""
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
    """Of all its buffers, unpacked: each one that is packed begins with its size. The message's
    head is a FlatBuffer: Message{2: RecordBatch, or DictionaryBatch{1: RecordBatch}}, RecordBatch
    {2: [(offset, length)], 3: compression}."""
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
