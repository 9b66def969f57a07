"""Reads kept rollouts and a tokenizer's pieces from the artifacts of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from engines.rollout.records.gallery import ROLLOUTS_FILE
from engines.rollout.records.parquet_rows import ParquetRows
from flows.reports.stage_view import StageView
from flows.running.records import RunRecord
from infra.home import home
from infra.store.artifacts import ArtifactStore
from infra.store.opened_file import opened_file

_TOKENIZER = "tokenizer.json"
_MOST_ROWS = 2000
"""of a stage, evenly spaced; a page has room for fewer"""


_CHOSEN_BY = ("label", "domain")


@dataclass(frozen=True, slots=True)
class _KeptRow(Mapping[str, Any]):
    """A row of which no more is in memory than tells rows apart, until more is asked for."""

    known: Mapping[str, Any]
    rows: ParquetRows
    number: int

    def __getitem__(self, name: str) -> Any:
        return self.known[name] if name in self.known else self.rows.row(self.number)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows.row(self.number))

    def __len__(self) -> int:
        return len(self.rows.row(self.number))


def read_samples(
    record: RunRecord, views: Sequence[StageView]
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by stage: the evaluation's first, then those of the stages that sampled."""
    found = {v.name: file for v in views if (file := _open(record, v, ROLLOUTS_FILE))}
    order = sorted(found, key=lambda name: name != "evaluate")
    return {name: _rows(found[name]) for name in order}


def read_pieces(record: RunRecord, views: Sequence[StageView]) -> Callable[[int], str] | None:
    """The text of a token id, by the tokenizer of the run's first model; None if it has none."""
    for view in views:
        if file := _open(record, view, _TOKENIZER):
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(file.read().decode())
            return lambda token: tokenizer.decode([token], skip_special_tokens=False)
    return None


def _open(record: RunRecord, view: StageView, name: str) -> BinaryIO | None:
    artifacts = ArtifactStore(record.store, home() / "cache")
    return None if view.manifest is None else opened_file(artifacts, view.manifest, name)


def _rows(file: BinaryIO) -> list[Mapping[str, Any]]:
    rows = ParquetRows(file)
    known = rows.columns(_CHOSEN_BY)
    numbers = range(len(rows))
    if len(rows) > _MOST_ROWS:
        numbers = [n * len(rows) // _MOST_ROWS for n in range(_MOST_ROWS)]
    return [_KeptRow(known[number], rows, number) for number in numbers]
