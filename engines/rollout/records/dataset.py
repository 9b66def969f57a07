"""The distilled dataset: verified rollouts of experts, one Parquet row each, with provenance.

The problems that an `admit` stage let through, to be drawn from, are rows of the same kind.

Rows are read as they are asked for: columns of few bytes for all rows, to choose by; whole rows by
row group, of which those read last stay in memory.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from engines.rollout.records.packing import dump_problem, dump_turns, load_problem, load_turns
from engines.types import Message, Problem, Split, TokenIds
from infra.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


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
        self._bytes = 0
        """of these: counting them anew for each row would take longer than reading the rows"""
        self._last: tuple[int, dict[str, Any]] = (-1, {})

    def __len__(self) -> int:
        return self._starts[-1]

    def columns(
        self, names: Sequence[str], rows: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the values of these columns for each row, or for these; of those that the file
        has."""
        there = [name for name in names if name in self._file.schema_arrow.names]
        table = self._file.read(columns=there)
        return (table if rows is None else table.take(list(rows))).to_pylist()

    def row(self, number: int) -> dict[str, Any]:
        """Return a whole row; the one read last costs nothing."""
        if self._last[0] != number:
            group = bisect_right(self._starts, number) - 1
            self._last = (-1, {})
            (row,) = self._group(group).slice(number - self._starts[group], 1).to_pylist()
            self._last = (number, row)
        return self._last[1]

    def sums(self, name: str) -> list[int]:
        """Return for each row the sum of a column of lists, read one row group at a time."""
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
            self._bytes += table.nbytes
        self._groups[number] = table
        while len(self._groups) > 1 and self._bytes > _MOST_BYTES:
            self._bytes -= self._groups.pop(next(iter(self._groups))).nbytes
        return table


DATA_FILE = "data.parquet"

_FORMATS = "chat_formats"
"""key of the file's metadata"""

_COLUMNS = (
    "tokens", "loss_mask", "domain", "expert", "artifact_digest", "problem_id", "sample_index",
    "weight_version", "rewards", "thinking", "problem", "turns",
)  # fmt: skip

_GROUP_TOKENS, _GROUP_ROWS = 1 << 20, 4096
"""of a row group: what is in memory while it is written or read"""


@dataclass(frozen=True, slots=True)
class DistilledRow:
    """One verified rollout: its tokens as sampled, and the conversation to render it anew.

    Example: DistilledRow([5, 9, 7, 2], [0, 0, 1, 1], problem, turns, expert="agent-rl",
    artifact_digest="9f...", sample_index=0, weight_version=3, rewards={"outcome": 1.0})
    """

    tokens: TokenIds
    loss_mask: Sequence[int] | NDArray[np.int8]
    problem: Problem
    turns: tuple[Message, ...]
    """assistant and tool turns after the problem's messages"""
    expert: str
    artifact_digest: str
    """digest of the expert's artifact"""
    sample_index: int
    weight_version: int
    rewards: dict[str, float]


class DatasetWriter:
    """Writes rows as they come, in groups of few tokens; ids are int32, masks int8, structures JSON
    text. Use it in one thread at a time."""

    def __init__(self, path: Path, formats: Mapping[str, str] | None = None) -> None:
        """`formats` says what each expert's tokens mean: its chat's `format_checksum`."""
        import pyarrow.parquet as pq

        known = {_FORMATS: json.dumps(dict(formats or {}), sort_keys=True)}
        self._schema = _schema().with_metadata(known)
        self._file = pq.ParquetWriter(path, self._schema)
        self.num_rows = 0

    def add(self, rows: Iterable[DistilledRow]) -> None:
        some: list[DistilledRow] = []
        tokens = 0
        for row in rows:
            some.append(row)
            tokens += len(row.tokens)
            if tokens >= _GROUP_TOKENS or len(some) == _GROUP_ROWS:
                self._write(some)
                some, tokens = [], 0
        self._write(some)

    def close(self) -> None:
        self._file.close()

    def _write(self, rows: Sequence[DistilledRow]) -> None:
        import pyarrow as pa

        if not rows:
            return
        columns = {
            "tokens": [r.tokens for r in rows],
            "loss_mask": [r.loss_mask for r in rows],
            "domain": [r.problem.domain for r in rows],
            "expert": [r.expert for r in rows],
            "artifact_digest": [r.artifact_digest for r in rows],
            "problem_id": [r.problem.id for r in rows],
            "sample_index": [r.sample_index for r in rows],
            "weight_version": [r.weight_version for r in rows],
            "rewards": [json.dumps(r.rewards, sort_keys=True) for r in rows],
            "thinking": [r.problem.thinking for r in rows],
            "problem": [dump_problem(r.problem) for r in rows],
            "turns": [dump_turns(r.turns) for r in rows],
        }
        self._file.write_table(pa.table(columns, schema=self._schema))
        self.num_rows += len(rows)


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {
        "tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "sample_index": pa.int32(),
        "weight_version": pa.int32(),
        "thinking": pa.bool_(),
    }
    return pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])


def write_dataset(
    path: Path, rows: Iterable[DistilledRow], formats: Mapping[str, str] | None = None
) -> None:
    """All at once; see `DatasetWriter`."""
    writer = DatasetWriter(path, formats)
    writer.add(rows)
    writer.close()


def dataset_rows(path: Path) -> Iterator[DistilledRow]:
    """Rows of a file, or of the `data.parquet` in a folder, a few of them in memory at a time.
    Raises InputError if it has none."""
    return map(row_of, ParquetRows(_file_of(path)).each())


def read_formats(path: Path) -> dict[str, str]:
    """The `format_checksum` of each expert that the dataset knows one of; raises as above."""
    import pyarrow.parquet as pq

    metadata: Mapping[bytes, bytes] = pq.read_schema(_file_of(path)).metadata or {}
    return json.loads(metadata.get(_FORMATS.encode(), b"{}"))


def _file_of(path: Path) -> Path:
    file = path / DATA_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"no distilled dataset at {file}: expected {DATA_FILE}")
    return file


def row_of(raw: Mapping[str, Any]) -> DistilledRow:
    """From a row of the file."""
    return DistilledRow(
        tokens=raw["tokens"],
        loss_mask=raw["loss_mask"],
        problem=load_problem(raw["problem"]),
        turns=load_turns(raw["turns"]),
        expert=raw["expert"],
        artifact_digest=raw["artifact_digest"],
        sample_index=raw["sample_index"],
        weight_version=raw["weight_version"],
        rewards=json.loads(raw["rewards"]),
    )


ADMITTED_FILE = "admitted.parquet"


@dataclass(frozen=True, slots=True)
class AdmittedProblem:
    """Example: AdmittedProblem("coding", "rl", problem)"""

    domain: str
    """its name in the recipe"""
    split: Split
    problem: Problem
    pool: str = ""
    """how often a model solves it, as `screen` found it; empty: no model was asked"""


def write_admitted(folder: Path, rows: Sequence[AdmittedProblem]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "domain": pa.array([row.domain for row in rows], pa.string()),
        "split": pa.array([row.split for row in rows], pa.string()),
        "problem_id": pa.array([row.problem.id for row in rows], pa.string()),
        "problem": pa.array([dump_problem(row.problem) for row in rows], pa.string()),
        "pool": pa.array([row.pool for row in rows], pa.string()),
    }
    pq.write_table(pa.table(columns), folder / ADMITTED_FILE)


def read_admitted(folder: Path) -> list[AdmittedProblem]:
    """In the order in which they were written. Raises InputError for a folder without them."""
    import pyarrow.parquet as pq

    file = folder / ADMITTED_FILE
    if not file.is_file():
        raise InputError(f"no admitted problems in {folder}: expected {ADMITTED_FILE}")
    return [
        AdmittedProblem(
            raw["domain"], raw["split"], load_problem(raw["problem"]), raw.get("pool", "")
        )
        for raw in pq.read_table(file).to_pylist()
    ]
