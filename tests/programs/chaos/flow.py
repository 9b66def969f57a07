"""The flow process of a cell: `flow STORE NAME SCENARIO [deployed] [A.B=V]...`

It runs in this process; with `deployed` it goes through the stack, and this process follows it.
"""

from __future__ import annotations

import sys

from flows.command.main import main as cli
from flows.load import load_recipe
from flows.running.in_process import InProcessRun
from flows.running.new_run import new_run
from tests.programs.chaos.scenarios import SCENARIOS, Scenario


def main(store: str, name: str, scenario: Scenario, deployed: bool, changes: list[str]) -> None:
    root = f"storage.root=file://{store}"
    recipe = load_recipe(str(scenario.recipe), [root, *scenario.changes, *changes])
    flow, arguments = scenario.of_run(next(iter(recipe.experts)))
    record = new_run(recipe, flow, arguments, name=name, in_process=not deployed)
    if deployed:
        cli(["resume", name])
    InProcessRun(record, print).result()


if __name__ == "__main__":
    given_store, given_name, given_scenario, *rest = sys.argv[1:]
    main(
        given_store,
        given_name,
        SCENARIOS[given_scenario],
        "deployed" in rest,
        [word for word in rest if "=" in word],
    )
