"""`make figures`: the scores of `docs/figures.md`, from runs of the recipes on this machine.

Runs `cpu-demo` under each seed, and `cpu-smoke` as the tests run it, in the present home; stages
that are in its store are not run again. Then it writes `docs/figures.json` and the page's table.
Exit 1 where the recorded scores are of this type of CPU and others came out: then a change of the
code moved them, and its commit should name it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.programs.figures.table import (
    FIGURES,
    PAGE,
    README,
    cpu_kind,
    gains,
    read_figures,
    what_repeats,
    with_table,
)

SMOKE = ("seed=0", "unified.path.rl.steps=8")
"""as `tests/e2e/test_smoke.py` runs it"""
_TRIBUTARY = str(Path(sys.executable).parent / "tributary")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make figures", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, default=[0], help="of cpu-demo; default 0")
    seeds: list[int] = parser.parse_args().seeds
    subprocess.run([_TRIBUTARY, "up"], check=True)
    before = read_figures() if FIGURES.exists() else {}
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "cpu-demo": {str(seed): _scores("cpu-demo", f"seed={seed}") for seed in seeds},
        "cpu-smoke": _scores("cpu-smoke", *SMOKE),
    }
    after = before | {cpu_kind(): found}
    FIGURES.write_text(json.dumps(after, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), after))
    if before:
        README.write_text(README.read_text().replace(gains(before), gains(after)))
    moved = _moved(before.get(cpu_kind()), found)
    for line in moved:
        print(f"moved: {line}")
    return 1 if moved else 0


def _scores(recipe: str, *changes: str) -> dict[str, Any]:
    name = f"figures-{changes[0].replace('=', '-')}"
    options = [part for change in changes for part in ("--set", change)]
    subprocess.run([_TRIBUTARY, "run", recipe, "--name", name, *options], check=True)
    latest = json.loads(_said(_TRIBUTARY, "runs", "--json"))[0]["run"]
    return what_repeats(json.loads(_said(_TRIBUTARY, "report", latest, "--json")))


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _moved(before: dict[str, Any] | None, after: dict[str, Any]) -> list[str]:
    """Which runs have other scores than are on record for this type of CPU, if any are."""
    if before is None:
        return []
    known = before["cpu-demo"] | {"smoke": before["cpu-smoke"]}
    made = after["cpu-demo"] | {"smoke": after["cpu-smoke"]}
    return [f"{name}" for name, scores in made.items() if known.get(name, scores) != scores]


if __name__ == "__main__":
    sys.exit(main())
