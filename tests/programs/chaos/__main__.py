"""`make chaos SEED=n`: every cell of the kill matrix, printed and written to `build/chaos.json`.

Usage: python -m tests.programs.chaos [--seed N] [CELL...]; a cell is `PART MOMENT` in quotes. What
a seed has done with this code is kept in `build/chaos-<seed>.jsonl`: an interrupted run continues
there. Cells whose recovery has a bound run with nothing beside them, the others in three lanes.
Below the cells: how long it took until work was written again, by what was hit, and which temporary
files and shared memory are left once all has ended. Exit 1 if a cell does not end with the bits of
the undisturbed run, if a recovery takes longer than it may, or if anything is left.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from infra.code.digest import digest_of
from infra.code.identity import PACKAGES
from tests.programs.bench.rows import show, write
from tests.programs.chaos.cells import Cell, matrix
from tests.programs.chaos.lane import Kind, run_lane
from tests.programs.chaos.recovery import End, left_row, recovery_rows

BUILD = Path("build")
MANY = 8
"""cells for which a second lane is worth its start"""


def main(arguments: list[str]) -> int:
    from tests.programs.chaos.ground import pin_threads

    parser = argparse.ArgumentParser(prog="python -m tests.programs.chaos")
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
    left = _run(given.seed, [c for c in cells if c.name not in done], _Record(done, kept))
    wanted = [done[c.name] for c in cells if c.name in done]
    rows = [*(end.row for end in wanted), *recovery_rows(wanted), left_row(left)]
    show(rows, f"chaos, seed {given.seed}")
    write(rows, BUILD / "chaos.json")
    return 0 if all(row.holds for row in rows) else 1


class _Record:
    """Cells that are done, also on disk."""

    def __init__(self, done: dict[str, End], kept: Path) -> None:
        self._done, self._kept, self._lock = done, kept, threading.Lock()

    def add(self, end: End) -> None:
        with self._lock, self._kept.open("a") as file:
            file.write(json.dumps(asdict(end) | {"code": _code()}) + "\n")
            self._done[end.name] = end
        print(f"{end.name}: {end.holds} {end.row.note}", file=sys.stderr, flush=True)


def _run(seed: int, cells: list[Cell], record: _Record) -> list[str]:
    """-> what is left of the lanes' machines."""
    timed = [cell for cell in cells if cell.is_timed]
    others = [cell for cell in cells if not cell.is_timed]
    phases: list[list[tuple[Kind, list[Cell]]]] = [
        [("ray", [c for c in timed if not c.needs_stack])],
        [("stack", [c for c in timed if c.needs_stack])],
        [
            ("ray", [c for c in others if not c.needs_stack]),
            ("stack", [c for c in others if c.needs_stack]),
        ],
    ]
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tr-references-") as references:
        for phase in phases:
            left += _phase(seed, Path(references), phase, record)
    return left


def _phase(
    seed: int, references: Path, queues: Sequence[tuple[Kind, list[Cell]]], record: _Record
) -> list[str]:
    """All cells of the queues, side by side; two lanes share a long queue that needs no stack."""
    waiting: list[Queue[Cell]] = []
    with ThreadPoolExecutor(4) as pool:
        lanes: list[Future[list[str]]] = []
        for kind, cells in queues:
            queue: Queue[Cell] = Queue()
            waiting.append(queue)
            for cell in cells:
                queue.put(cell)
            alone = len(queues) == 1 or kind == "stack" or len(cells) < MANY
            for _ in range(min(len(cells), 1 if alone else 2)):
                lanes.append(pool.submit(run_lane, kind, references, seed, queue, record.add))
        try:
            return [path for lane in lanes for path in lane.result()]
        except KeyboardInterrupt:  # each lane ends its cell, and then itself
            for queue in waiting:
                queue.queue.clear()
            raise


def _done(kept: Path) -> dict[str, End]:
    """Cells that this seed has done with this code; one that failed is done again."""
    if not kept.exists():
        return {}
    entries = [json.loads(line) for line in kept.read_text().splitlines()]
    now = _code()
    ends = [End(**entry) for entry in entries if entry.pop("code") == now]
    return {end.name: end for end in ends if end.holds}


def _code() -> str:
    """Of what is committed: the product, its locks and the matrix itself, not docs or tests."""
    trees = [f"HEAD:{path}" for path in (*sorted(PACKAGES), "locks", "tests/programs/chaos")]
    git = ["git", "rev-parse", *trees]
    found = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split()
    return digest_of(found)[:16]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
