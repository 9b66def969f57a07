"""`make chaos SEED=n`: every cell of the kill matrix, printed and written to `build/chaos.json`.

Usage: python -m tests.chaos [--seed N] [CELL...]; a cell is `PART MOMENT` in quotes. What a seed
has done on this commit is kept in `build/chaos-<seed>.jsonl`: an interrupted run goes on there.
Exit 1 if a cell does not end with the bits of the undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.rows import Row, show, write
from tests.chaos.cells import Cell, matrix

if TYPE_CHECKING:
    from tests.chaos.ground import Ground

BUILD = Path("build")


def main(arguments: list[str]) -> int:
    from tests.chaos.ground import pin_threads

    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("cells", nargs="*")
    given = parser.parse_args(arguments)
    pin_threads()
    cells = [c for c in matrix(given.seed) if not given.cells or c.name in given.cells]
    if not cells:
        print("no such cell; there are:", *sorted(c.name for c in matrix(0)), sep="\n  ")
        return 2
    BUILD.mkdir(exist_ok=True)
    kept = BUILD / f"chaos-{given.seed}.jsonl"
    rows = _done(kept)
    _run(given.seed, [c for c in cells if c.name not in rows], rows, kept)
    wanted = [rows[c.name] for c in cells if c.name in rows]
    show(wanted, f"chaos, seed {given.seed}")
    write(wanted, BUILD / "chaos.json")
    return 0 if all(row.holds for row in wanted) else 1


def _run(seed: int, cells: list[Cell], rows: dict[str, Row], kept: Path) -> None:
    from tests.chaos.ground import ground
    from tests.chaos.stack_ground import stack_ground

    for needs_stack, open_ground in ((False, ground), (True, stack_ground)):
        chosen = [cell for cell in cells if cell.needs_stack is needs_stack]
        if chosen:
            with open_ground() as place:
                _run_in(place, seed, chosen, rows, kept)


def _run_in(place: Ground, seed: int, cells: list[Cell], rows: dict[str, Row], kept: Path) -> None:
    from tests.chaos.ground import jitter

    print(f"reference: {place.reference():.0f} s", file=sys.stderr, flush=True)
    for cell in cells:
        result = place.run(cell, jitter(seed, cell))
        note = f"{result.seconds:.1f} s, work again after {result.recovery:.1f} s; {result.said}"
        rows[cell.name] = Row(cell.name, float(result.holds), "identical", 1.0, note=note)
        entry = {"commit": _commit(), "name": cell.name, "holds": result.holds, "note": note}
        with kept.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{cell.name}: {result.holds} {note}", file=sys.stderr, flush=True)


def _done(kept: Path) -> dict[str, Row]:
    """Rows of cells that this seed has done on this commit; a cell that failed is done again."""
    if not kept.exists():
        return {}
    entries = [json.loads(line) for line in kept.read_text().splitlines()]
    return {
        e["name"]: Row(e["name"], 1.0, "identical", 1.0, note=e["note"])
        for e in entries
        if e["commit"] == _commit() and e["holds"]
    }


def _commit() -> str:
    git = ["git", "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
