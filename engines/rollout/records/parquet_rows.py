"""Rows of a Parquet file, read as they are asked for.

Columns of few bytes are read for all rows, to choose by; whole rows by row group, of which those
read last stay in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BYTES = 64 << 20
"""of row groups in memory, unless a single one has more"""
_AT_ONCE = 16
"""rows made into Python's objects at once"""


class ParquetRows:
    """Use it in one thread."""

    def __init__(self, source: Path | BinaryIO) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(source)
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = list(accumulate(sizes, initial=0))
        self._groups: dict[int, pa.Table] = {}
        """those read last, the newest at the end"""
        self._last: tuple[int, dict[str, Any]] = (-1, {})

    def __len__(self) -> int:
        return self._starts[-1]

    def columns(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of each row the values of these columns; of those that the file has."""
        there = [name for name in names if name in self._file.schema_arrow.names]
        return self._file.read(columns=there).to_pylist()

    def row(self, number: int) -> dict[str, Any]:
        """A whole row; the one read last costs nothing."""
        if self._last[0] != number:
            group = bisect_right(self._starts, number) - 1
            self._last = (-1, {})
            (row,) = self._group(group).slice(number - self._starts[group], 1).to_pylist()
            self._last = (number, row)
        return self._last[1]

    def sums(self, name: str) -> list[int]:
        """Of each row the sum of a column of lists, read one row group at a time."""
        import numpy as np

        found: list[int] = []
        for group in range(len(self._starts) - 1):
            for lists in self._file.read_row_group(group, columns=[name])[name].chunks:
                values, lengths = lists.flatten().to_numpy(), lists.value_lengths().to_numpy()
                before, ends = np.r_[0, np.cumsum(values, dtype=np.int64)], np.cumsum(lengths)
                found += (before[ends] - before[ends - lengths]).tolist()
        return found

    def each(self) -> Iterator[dict[str, Any]]:
        """All whole rows in order, a few of them in memory at a time."""
        for group in range(len(self._starts) - 1):
            for batch in self._file.iter_batches(_AT_ONCE, [group], use_threads=False):
                yield from batch.to_pylist()

    def _group(self, number: int) -> pa.Table:
        table = self._groups.pop(number, None)
        if table is None:
            table = self._file.read_row_group(number)
        self._groups[number] = table
        while len(self._groups) > 1 and sum(t.nbytes for t in self._groups.values()) > _MOST_BYTES:
            del self._groups[next(iter(self._groups))]
        return table
