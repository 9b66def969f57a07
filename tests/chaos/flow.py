"""The flow process of a cell: one expert of the recipe. `flow STORE NAME [deployed] [A.B=V]...`.

It runs in this process; with `deployed` it goes through the stack, and this process follows it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.cli import main as cli
from flows.in_process import InProcessRun
from flows.load import load_recipe
from flows.runs import new_run

RECIPE = Path(__file__).with_name("recipe.yaml")


def main(store: str, name: str, deployed: bool, changes: list[str]) -> None:
    recipe = load_recipe(str(RECIPE), [f"storage.root=file://{store}", *changes])
    record = new_run(recipe, "expert", {"name": "general"}, name=name, in_process=not deployed)
    if deployed:
        cli(["resume", name])
    InProcessRun(record, print).result()


if __name__ == "__main__":
    rest = sys.argv[3:]
    main(sys.argv[1], sys.argv[2], "deployed" in rest, [word for word in rest if "=" in word])
