"""The flow process of a cell: one expert of the recipe, in this process. `flow STORE NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

from flows.in_process import InProcessRun
from flows.load import load_recipe
from flows.runs import new_run

RECIPE = Path(__file__).with_name("recipe.yaml")


def main(store: str, name: str) -> None:
    recipe = load_recipe(str(RECIPE), [f"storage.root=file://{store}"])
    record = new_run(recipe, "expert", {"name": "general"}, name=name, in_process=True)
    InProcessRun(record, print).result()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
