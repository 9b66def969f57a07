"""`make chaos SEED=n`: every cell of the kill matrix, printed and written to `build/chaos.json`.

Usage: python -m tests.chaos [--seed N] [CELL...]; a cell is `PART MOMENT` in quotes. What a seed
has done on this commit is kept in `build/chaos-<seed>.jsonl`: an interrupted run goes on there.
Below the cells: how long it took until work was written again, by what was hit, and which
temporary files and shared memory are left once all has ended. Exit 1 if a cell does not end with
the bits of the undisturbed run, if a recovery takes longer than it may, or if anything is left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.rows import show, write
from tests.chaos.cells import Cell, matrix
from tests.chaos.recovery import End, left_row, recovery_rows

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
    done = _done(kept)
    left = _run(given.seed, [c for c in cells if c.name not in done], done, kept)
    wanted = [done[c.name] for c in cells if c.name in done]
    rows = [*(end.row for end in wanted), *recovery_rows(wanted), left_row(left)]
    show(rows, f"chaos, seed {given.seed}")
    write(rows, BUILD / "chaos.json")
    return 0 if all(row.holds for row in rows) else 1


def _run(seed: int, cells: list[Cell], done: dict[str, End], kept: Path) -> list[str]:
    """Adds to `done`; -> what is left of the cells' machines."""
    from tests.chaos.ground import ground
    from tests.chaos.stack_ground import stack_ground

    left: list[str] = []
    for needs_stack, open_ground in ((False, ground), (True, stack_ground)):
        chosen = [cell for cell in cells if cell.needs_stack is needs_stack]
        if chosen:
            with open_ground() as place:
                _run_in(place, seed, chosen, done, kept)
            left += place.left
    return left


def _run_in(place: Ground, seed: int, cells: list[Cell], done: dict[str, End], kept: Path) -> None:
    from tests.chaos.ground import jitter

    print(f"reference: {place.reference():.0f} s", file=sys.stderr, flush=True)
    for cell in cells:
        end = place.run(cell, jitter(seed, cell))
        done[cell.name] = end
        with kept.open("a") as file:
            file.write(json.dumps(asdict(end) | {"commit": _commit()}) + "\n")
        print(f"{end.name}: {end.holds} {end.row.note}", file=sys.stderr, flush=True)


def _done(kept: Path) -> dict[str, End]:
    """Cells that this seed has done on this commit; one that failed is done again."""
    if not kept.exists():
        return {}
    entries = [json.loads(line) for line in kept.read_text().splitlines()]
    now = _commit()
    ends = [End(**entry) for entry in entries if entry.pop("commit") == now]
    return {end.name: end for end in ends if end.holds}


def _commit() -> str:
    git = ["git", "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
