"""`make proof`: runs the tests that prove the algorithms and prints what each estimator has.

Writes `build/proof.json` and a summary in `docs/algorithms.md`. Exit 1 if a row is incomplete, if
a test claims an estimator that is not there, or if a test fails.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.programs.bench.rows import Row, show, write
from tests.programs.proof.estimators import estimators, unnamed
from tests.programs.proof.marks import Collected
from tests.programs.proof.table import into_page, proven, unknown

RESULT = Path("build/proof.json")
PAGE = Path("docs/algorithms.md")
TESTS = ("tests/programs/proof", "tests/unit")


def main() -> int:
    began = time.monotonic()
    collected = Collected()
    files = [path for folder in TESTS for path in _marked(Path(folder))]
    status = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[collected])
    table = proven(estimators(), collected.numbers, collected.failed)
    seconds = time.monotonic() - began
    strays = unknown(estimators(), collected.numbers) | unnamed()
    note = f"no row for: {', '.join(sorted(strays))}" if strays else ""
    rows = [p.row for p in table]
    rows += [
        Row("rows complete", sum(not p.missing for p in table), "rows", len(table)),
        Row("claims and functions without a row", len(strays), "names", 0, True, note),
        Row("tests failed", float(status != pytest.ExitCode.OK), "", 0, True),
    ]
    show(rows, f"proof, {seconds:.0f} s")
    write(rows, RESULT)
    into_page(PAGE, table)
    return 0 if all(row.holds for row in rows) else 1


def _marked(folder: Path) -> list[str]:
    """Test files that claim a proof."""
    files = sorted(folder.rglob("test_*.py"))
    return [str(file) for file in files if "mark.proof(" in file.read_text()]


if __name__ == "__main__":
    sys.exit(main())
