"""Kept rollouts are read as they are shown: memory does not follow from how many there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from engines.rollout.records import dataset
from engines.rollout.records.dataset import ParquetRows
from engines.rollout.records.gallery import Gallery
from engines.types import Status
from flows.command.samples import Samples
from flows.reports.shown_samples import (
    _rows,
    sample_set,
)
from tests.parts.rollout_parts import CharChat
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit
TOKENS = 4000


def _file(folder: Path, steps: int) -> Path:
    gallery = Gallery(CharChat())
    draw = np.random.default_rng(0)
    folder.mkdir()
    for step in range(1, steps + 1):
        tokens = draw.integers(97, 122, TOKENS).tolist()
        mask = [0] * step + [1] * (TOKENS - step)
        versions = [-1] * step + [step] * (TOKENS - step)
        made = sample_of(
            "p", "d", "g", f"g#{step}", 0, tokens, mask, [-0.5] * TOKENS, versions,
            Status.COMPLETED, step / steps,
        )  # fmt: skip
        gallery.add(f"step {step}", [made])
    gallery.write(folder)
    return folder / "rollouts.parquet"


def _peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _for_a_page(file: Path) -> None:
    with file.open("rb") as opened:
        made = sample_set({"rl": _rows(opened)}, {}, str, budget=100_000)
    assert 0 < len(made.samples) <= made.kept


def _for_a_person(file: Path) -> None:
    samples = Samples(file)
    longest = max(samples.heads(), key=lambda head: head.trained)
    assert samples.sample(longest).label == "step 1"


@pytest.mark.parametrize("read", [_for_a_page, _for_a_person])
def test_four_times_the_rollouts_take_no_more_memory(
    read: Callable[[Path], None], tmp_path: Path
) -> None:
    few, many = (_file(tmp_path / str(steps), steps) for steps in (15, 60))
    read(few)
    assert _peak(lambda: read(many)) < 1.2 * _peak(lambda: read(few)) + 100_000


@pytest.mark.parametrize("most_bytes", [1, 1 << 30])
def test_heads_and_whole_rows_are_those_of_the_file(
    tmp_path: Path, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_MOST_BYTES", most_bytes)
    file = _file(tmp_path / "all", 9)
    assert pq.ParquetFile(file).metadata.num_row_groups == 9
    rows, whole = ParquetRows(file), pq.read_table(file).to_pylist()
    assert [rows.row(number) for number in (8, 0, 0, 4)] == [whole[n] for n in (8, 0, 0, 4)]
    kept = [table.nbytes for table in rows._groups.values()]
    assert (len(kept), rows._bytes) == (1 if most_bytes == 1 else 3, sum(kept))
    assert list(rows.each()) == whole
    assert rows.columns(["label", "absent"]) == [{"label": row["label"]} for row in whole]
    assert rows.sums("loss_mask") == [sum(row["loss_mask"]) for row in whole]
