"""Reads kept rollouts and a tokenizer's pieces from the artifacts of a run."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from engines.rollout.records.gallery import ROLLOUTS_FILE
from flows.reports.stage_view import StageView
from flows.running.records import RunRecord
from infra.home import home
from infra.store.artifacts import ArtifactStore

_TOKENIZER = "tokenizer.json"
_MOST_ROWS = 2000
"""of a stage, evenly spaced; a page has room for fewer"""


def read_samples(record: RunRecord, views: Sequence[StageView]) -> dict[str, list[dict[str, Any]]]:
    """Rows by stage: the evaluation's first, then those of the stages that sampled."""
    found = {view.name: data for view in views if (data := _read(record, view, ROLLOUTS_FILE))}
    order = sorted(found, key=lambda name: name != "evaluate")
    return {name: _rows(found[name]) for name in order}


def read_pieces(record: RunRecord, views: Sequence[StageView]) -> Callable[[int], str] | None:
    """The text of a token id, by the tokenizer of the run's first model; None if it has none."""
    for view in views:
        if data := _read(record, view, _TOKENIZER):
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_str(data.decode())
            return lambda token: tokenizer.decode([token], skip_special_tokens=False)
    return None


def _read(record: RunRecord, view: StageView, name: str) -> bytes | None:
    if view.manifest is None or name not in {file.path for file in view.manifest.files}:
        return None
    artifacts = ArtifactStore(record.store, home() / "cache")
    return artifacts.read(view.record.kind, view.record.digest, name)


def _rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(io.BytesIO(data)).read()  # `read_table` would import pandas
    if table.num_rows > _MOST_ROWS:
        table = table.take([n * table.num_rows // _MOST_ROWS for n in range(_MOST_ROWS)])
    return table.to_pylist()
