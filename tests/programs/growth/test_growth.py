"""The guard's own parts, against figures worked out by hand, and its page against its rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs.growth.fit import Fitted, exponent, least
from tests.programs.growth.meter import Figure, Meter
from tests.programs.growth.page import PAGE, lines, summary
from tests.programs.growth.registry import HISTORY, ROWS, WORK, Growth, load_rows

pytestmark = pytest.mark.unit
SIZES = (10, 40, 160)


def _row(**bounds: float) -> Growth:
    figures = {Figure(name): bound for name, bound in bounds.items()}
    return Growth("a row", "things", SIZES, figures, lambda size, meter: None)


def _costs(figure: Figure, values: Sequence[float]) -> list[dict[Figure, float]]:
    return [{figure: value} for value in values]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, 1.0, 1.0], 0.0),
        ([1.0, 4.0, 16.0], 1.0),
        ([1.0, 16.0, 256.0], 2.0),
        ([0.1, 4.0, 4.0], 0.0),  # it has reached its bound
        ([0.001, 0.004, 0.016], 0.0),  # nobody notices
    ],
)
def test_exponents(values: list[float], found: float) -> None:
    assert exponent(Figure.CPU, SIZES, values) == pytest.approx(found)


def test_what_grows_with_the_work_holds_there_and_not_in_history() -> None:
    linear = _costs(Figure.CALLS, [100, 400, 1600])
    assert Fitted(_row(calls=WORK), linear).holds
    in_history = Fitted(_row(calls=HISTORY), linear)
    assert (in_history.holds, in_history.broken) == (False, [Figure.CALLS])
    assert not Fitted(_row(calls=WORK), (), "it failed").holds
    costs = "100 calls / 400 calls / 1,600 calls"
    told = ("a row", "10 / 40 / 160 things", costs, "1.00", "<= 0.1", "NO")
    assert list(lines([in_history])) == [told]


def test_the_least_of_several_tries_counts() -> None:
    slow, quick = _costs(Figure.CPU, [1, 9, 3]), _costs(Figure.CPU, [2, 2, 2])
    assert least(_row(cpu_s=HISTORY), [slow, quick]) == _costs(Figure.CPU, [1, 2, 2])


_MEASURED = """
import json
from pathlib import Path
from infra.store.store import Store
from tests.programs.growth.meter import Figure, Meter
meter, store = Meter(Path("{folder}")), Store("file://{folder}")
store.write("before", b"")
with meter.counting():
    store.write("a", b"x")
    held = b"x" * 50_000_000
    store.read("a")
store.read("a")
meter.count(Figure.BYTES, 7)
print(json.dumps([meter.figures[f] for f in (Figure.CALLS, Figure.MEMORY, Figure.BYTES)]))
"""


def test_a_block_costs_what_is_done_in_it(tmp_path: Path) -> None:
    """In a process of its own: others give memory back meanwhile."""
    program = _MEASURED.format(folder=str(tmp_path))
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    calls, memory, counted = json.loads(said.stdout)
    assert (calls, counted) == (2, 7)
    assert 50_000_000 <= memory < 60e6


def test_what_is_prepared_apart_must_succeed(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    meter.apart(lambda: (tmp_path / "made").touch())
    assert (tmp_path / "made").exists()
    with pytest.raises(AssertionError, match="failed"):
        meter.apart(lambda: (tmp_path / "none" / "made").touch())


def test_the_page_has_every_row() -> None:
    load_rows()
    told = PAGE.read_text()
    assert f" costs of {len(ROWS)} parts, of which " in told


def test_the_page_counts_the_costs_and_lists_what_breaks_its_bound() -> None:
    good, bad = ("a", "sizes", "1 s", "0.00", "<= 0.1", "yes"), ("b", "s", "2 s", "1", "<= 0", "NO")
    said = summary([good, bad, ("b", "s", "3 s", "0", "<= 0", "yes")], "a machine")
    assert said.startswith("a machine: 3 costs of 2 parts, of which 1 break their bound.")
    assert "| b | s | 2 s | 1 | <= 0 |\n" in said
    assert summary([good], "a machine").endswith(
        "1 costs of 1 parts, of which 0 break their bound.\n"
    )


def test_a_full_disk_takes_no_file_and_still_gives_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("kept")
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.programs.month.full_disk import FullDisk\n"
        "folder, disk = Path(sys.argv[1]), FullDisk()\n"
        "(folder / 'before').touch()\n"
        "disk.fill()\n"
        "print((folder / 'there').read_text())\n"
        "try: (folder / 'after').write_text('x')\n"
        "except OSError as error: print(error.errno)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert done.stdout.split() == ["kept", "28"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "there"]
