"""The rows of a bench: what holds, and what its file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs.bench.clock import Spent, median_ratio
from tests.programs.bench.rows import Row, write

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        (Row("speed", 0.91, "ratio", floor=0.9), True),
        (Row("speed", 0.89, "ratio", floor=0.9), False),
        (Row("seconds", 9.0, "s", floor=10, at_most=True), True),
        (Row("seconds", 11.0, "s", floor=10, at_most=True), False),
        (Row("bytes", 1.0, "B"), True),
        (Row("speed", float("nan"), "ratio", floor=0.9), False),
    ],
)
def test_a_row_holds_on_the_right_side_of_its_bound(row: Row, holds: bool) -> None:
    assert row.holds is holds


def test_the_file_names_rows_machine_and_commit(tmp_path: Path) -> None:
    write([Row("speed", 0.5, "ratio", floor=0.9, note="how")], tmp_path / "new" / "bench.json")
    record = json.loads((tmp_path / "new" / "bench.json").read_text())
    assert set(record) == {"rows", "machine", "commit"}
    row = {"name": "speed", "value": 0.5, "unit": "ratio", "floor": 0.9, "holds": False}
    assert record["rows"] == [row | {"note": "how"}]


def test_a_ratio_is_the_median_over_neighbours() -> None:
    reference = [Spent(1.0, 2.0), Spent(4.0, 2.0), Spent(9.0, 2.0)]
    ours = [Spent(2.0, 1.0), Spent(4.0, 4.0), Spent(3.0, 2.0)]
    assert median_ratio(reference, ours) == Spent(1.0, 1.0)
