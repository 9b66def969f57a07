"""Runs mutated recipes that `check` accepts: what it lets through has to run.

Usage: python -m tests.programs.chaos.accepted [--count N]. The mutations are those of
`tests/unit/flows/checks/test_recipe_fuzz.py`, in their order; all runs share a store, so each makes
only what its mutation changes. A run may also end as the recipe's own bounds say
(`TrainingStopped`): a wild learning rate is valid. Writes `build/accepted.json`; exit 1 when a run
fails otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from flows.running.records import find_run
from tests.programs.bench.rows import Row, show, write
from tests.programs.chaos.ground import pin_threads
from tests.programs.chaos.stack_ground import StackGround, stack_ground
from tests.unit.flows.checks.test_recipe_fuzz import mutated

RUN_S = 900.0
_OWN_WORDS = ("bounds.", "the loss is", "the gradient norm is", "no rollout passed")
"""of a training that stopped for a reason that the recipe's author has to judge"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.chaos.accepted")
    parser.add_argument("--count", type=int, default=10)
    wanted = parser.parse_args(arguments).count
    pin_threads()
    rows: list[Row] = []
    with stack_ground() as place:
        seed = 0
        while len(rows) < wanted:
            recipe, changed = mutated(seed)
            file = _written(place, recipe, seed)
            if place.call("check", str(file), timeout=120) == 0:
                what = ", ".join(".".join(map(str, at)) for at in changed)
                rows.append(_run(place, file, seed, what))
                print(f"{rows[-1].name}: {rows[-1].note}", file=sys.stderr, flush=True)
            seed += 1
    show(rows, "accepted mutations, run")
    write(rows, Path("build/accepted.json"))
    return 0 if all(row.holds for row in rows) else 1


def _written(place: StackGround, recipe: dict[str, Any], seed: int) -> Path:
    file = place.home / f"mutation-{seed}.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


def _run(place: StackGround, file: Path, seed: int, what: str) -> Row:
    name, began = f"mutation-{seed}", time.monotonic()
    code = place.call("run", str(file), "--name", name, timeout=RUN_S)
    state = find_run(name).state()
    stopped = any(word in state.message for word in _OWN_WORDS)
    told = f"{what}: {state.state} in {time.monotonic() - began:.0f} s {state.message[:300]}"
    return Row(f"mutation {seed}", float(code == 0 or stopped), "runs", 1.0, note=told.strip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
