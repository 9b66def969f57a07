"""The flow process of a cell: one expert of the recipe, in this process. `flow STORE NAME`.

With `deployed` as a third argument it goes through the stack, and this process follows it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.cli import main as cli
from flows.in_process import InProcessRun
from flows.load import load_recipe
from flows.runs import new_run

RECIPE = Path(__file__).with_name("recipe.yaml")


def main(store: str, name: str, deployed: bool) -> None:
    recipe = load_recipe(str(RECIPE), [f"storage.root=file://{store}"])
    record = new_run(recipe, "expert", {"name": "general"}, name=name, in_process=not deployed)
    if deployed:
        cli(["resume", name])
    InProcessRun(record, print).result()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "deployed" in sys.argv[3:])
