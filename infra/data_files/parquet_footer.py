"""What a Parquet file's footer says of a row group, compared with the pages that are there.

pyarrow ends the process at some footers that contradict themselves, and believes those that say
less than their pages hold. So the footer and the pages' headers are read here first; both are
structs of Thrift's compact protocol.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from infra.errors import InputError

_TAIL = 8
"""bytes behind the footer: its length, and PAR1"""
_HEADER = 1 << 13
"""bytes in which the header of most pages ends"""
_LONGEST_HEADER = 1 << 24
_ENCODINGS = (
    *("PLAIN", "", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED"),
    *("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"),
)
_ADVICE = "the file is damaged: copy it again, or write it anew"


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of one row group, as it is."""

    path_in_schema: str
    physical_type: str
    num_values: int
    """nulls are some, too"""
    total_uncompressed_size: int
    encodings: frozenset[str]


class Footer:
    """The footer of one file, read when it is asked for the first time."""

    def __init__(self, source: Any, metadata: Any, name: str) -> None:
        """`source`: a path, or a file that is open; `metadata`: as pyarrow reads it. Raises
        InputError for row groups that do not add up to the file's rows."""
        self._source, self._metadata, self._name = source, metadata, name
        groups = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
            raise self._damaged(
                f"its footer says {metadata.num_rows} rows, and {sum(groups)} of its row groups"
            )

    def columns(self, group: int) -> list[ColumnChunk]:
        """Raises InputError where what the footer says of them is not so."""
        chunks: list[Any] = self._groups[group].get(1, [])
        leaves = [self._metadata.schema.column(at) for at in range(len(self._metadata.schema))]
        if len(chunks) != len(leaves):
            raise self._damaged(f"row group {group + 1} has {len(chunks)} of {len(leaves)} columns")
        with _opened(self._source) as file:
            return [
                self._column(file, group, chunk.get(3, {}), leaf)
                for chunk, leaf in zip(chunks, leaves, strict=True)
            ]

    def require_rows(self, group: int, num_rows: int) -> None:
        """Raises InputError where a row group that was read has another number of rows."""
        said = self._metadata.row_group(group).num_rows
        if num_rows != said:
            raise self._damaged(
                f"row group {group + 1} holds {num_rows} rows, and the footer says {said}"
            )

    def _column(self, file: BinaryIO, group: int, said: dict[int, Any], leaf: Any) -> ColumnChunk:
        where = f"column {leaf.path} of row group {group + 1}"
        sizes, path = said.get(16, {}), b".".join(said.get(3, [])).decode(errors="replace")
        if path != leaf.path:
            raise self._damaged(f"{where}: is called {path} there")
        for field, most in ((2, leaf.max_repetition_level), (3, leaf.max_definition_level)):
            if len(sizes.get(field, [])) not in (0, most + 1):
                raise self._damaged(f"{where}: its statistics are those of another column")
        try:
            values, size, seen = _pages(file, said)
        except (IndexError, KeyError, TypeError, ValueError, RecursionError, OSError):
            raise self._damaged(f"{where}: its pages are not where the footer says") from None
        rows = self._metadata.row_group(group).num_rows
        if values != said.get(5) or (not leaf.max_repetition_level and values != rows):
            raise self._damaged(
                f"{where} holds {values} values, and the footer says {said.get(5)} in {rows} rows"
            )
        encodings = {*said.get(2, []), *seen}
        named = (_ENCODINGS[each] for each in encodings if 0 <= each < len(_ENCODINGS))
        return ColumnChunk(
            leaf.path, leaf.physical_type, values, max(said.get(6, 0), size), frozenset(named)
        )

    @cached_property
    def _groups(self) -> list[dict[int, Any]]:
        try:
            with _opened(self._source) as file:
                end = file.seek(-_TAIL, io.SEEK_END)
                (length,) = struct.unpack("<I", file.read(4))
                file.seek(end - length)
                found: list[dict[int, Any]] = _Thrift(file.read(length)).struct()[4]
            begins = [_begin(c[3]) for group in found for c in group[1] if c[3][7]]
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            raise self._damaged("its footer cannot be read") from None
        if len({*begins}) < len(begins):
            raise self._damaged("two of its columns are the same pages")
        return found

    def _damaged(self, what: str) -> InputError:
        return InputError(f"files: {self._name}: {what}; {_ADVICE}")


@contextmanager
def _opened(source: Any) -> Generator[BinaryIO]:
    if not isinstance(source, str | Path):
        yield source
        return
    with Path(source).open("rb") as file:
        yield file


def _begin(said: dict[int, Any]) -> int:
    """The first byte of a column; without values it has a dictionary at most, and a 0 for the
    place of its first page of data."""
    return min((at for at in (said[9], said.get(11)) if at), default=0)


def _pages(file: BinaryIO, said: dict[int, Any]) -> tuple[int, int, set[int]]:
    """Values in the pages of a column, their bytes unpacked, and their encodings."""
    at = begin = _begin(said)
    values, size, encodings = 0, 0, set[int]()
    while at < begin + said[7]:
        header, length = _header(file, at)
        if header[3] < 0 or header[2] < 0:
            raise ValueError("a page of less than nothing")
        size += header[2]
        at += length + header[3]
        page = header.get(5) or header.get(8)
        if page:
            values += page[1]
            encodings.add(page[2] if 5 in header else page[4])
    return values, size, encodings


def _header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page that begins at a byte, and its length."""
    most = _HEADER
    while True:
        file.seek(at)
        text = file.read(most)
        read = _Thrift(text)
        try:
            return read.struct(), read.at
        except IndexError:
            if len(text) < most or most >= _LONGEST_HEADER:
                raise
            most *= 16


class _Thrift:
    """Reads the compact protocol. Raises IndexError where the bytes end, ValueError for others."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> dict[int, Any]:
        """Read a structure's fields by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._signed()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                return self._list()
            case 12:
                return self.struct()
            case _:
                raise ValueError(f"a value of kind {kind}")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = self._unsigned() if head >> 4 == 15 else head >> 4
        return [self._value(head & 15) for _ in range(count)]

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _bytes(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise IndexError
        found, self.at = self._data[self.at : end], end
        return found
