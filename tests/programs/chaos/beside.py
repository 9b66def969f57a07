"""Two homes, each with a stack of its own, run two recipes at once in one store.

Usage: python -m tests.programs.chaos.beside. The recipes differ in their RL stage, so they share
the stages before it. First each home runs its recipe in a store of its own; what the shared store
holds in the end must be the same to the bit, and no stage may have been tried twice. Writes
`build/beside.json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.programs.bench.rows import Row, show, write
from tests.programs.chaos.compare import checksums
from tests.programs.chaos.ground import pin_threads
from tests.programs.chaos.scenarios import SCENARIOS
from tests.programs.chaos.stack_ground import StackGround, stack_ground

RUN_S = 600.0
RATES = ("5e-4", "3e-4")
"""learning rate of each home's RL stage"""

Made = dict[str, dict[str, str]]
"""checksums of each artifact, by kind and digest"""


def main() -> int:
    pin_threads()
    with ExitStack() as stacks, ThreadPoolExecutor(2) as pool:
        places = [stacks.enter_context(stack_ground()) for _ in RATES]
        store = places[0].home / "shared"
        alone = list(pool.map(_alone, places, RATES))
        began = time.monotonic()
        codes = list(pool.map(_run, places, RATES, (store, store)))
        seconds = time.monotonic() - began
        rows = _rows(codes, alone, _made(store), _attempts(store), seconds)
    show(rows, "two homes side by side")
    write(rows, Path("build/beside.json"))
    return 0 if all(row.holds for row in rows) else 1


def _alone(place: StackGround, rate: str) -> Made:
    store = place.home / "alone"
    if _run(place, rate, store) != 0:
        raise RuntimeError(f"the run alone failed; see {place.home / 'stack.log'}")
    return _made(store)


def _run(place: StackGround, rate: str, store: Path) -> int:
    changes = (f"storage.root=file://{store}", f"experts.general.path.rl.optimizer.lr={rate}")
    sets = [word for change in changes for word in ("--set", change)]
    return place.call(
        "run", str(SCENARIOS["expert"].recipe), "--expert", "general", *sets, timeout=RUN_S
    )


def _made(store: Path) -> Made:
    found = store.glob("artifacts/*/*/manifest.json")
    return {f"{path.parent.parent.name}/{path.parent.name}": checksums(path) for path in found}


def _attempts(store: Path) -> dict[str, int]:
    """How often each stage was begun."""
    claims = [path.parent for path in store.glob("attempts/*/*/*.claim.json")]
    return {f"{folder.parent.name}/{folder.name}": claims.count(folder) for folder in claims}


def _rows(
    codes: list[int], alone: list[Made], shared: Made, attempts: Mapping[str, Any], seconds: float
) -> list[Row]:
    first, second = alone
    wrong = [name for made in alone for name, files in made.items() if shared.get(name) != files]
    common = len(first.keys() & second.keys())
    twice = [name for name, count in attempts.items() if count > 1]
    note = f"{len(shared)} artifacts, {common} of them of both recipes; {seconds:.0f} s"
    return [
        Row("recipes completed", float(codes.count(0)), "runs", 2.0, note=note),
        Row("artifacts unlike those alone", float(len(wrong)), "", 0.0, True, ", ".join(wrong)),
        Row("stages in common", float(common), "", 2.0, note="base and cold start"),
        Row("stages begun twice", float(len(twice)), "", 0.0, True, ", ".join(twice)),
    ]


if __name__ == "__main__":
    sys.exit(main())
