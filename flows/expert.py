"""One expert: base -> sft -> rl (-> distill -> sft -> rl) x rounds -> evaluate in its domain."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.recipe import Recipe
from flows.running.prefect_run import run_flow, stop_stages, task_runner


@flow(
    name="expert",
    flow_run_name="{recipe.name}-{name}",
    task_runner=task_runner(),
    on_cancellation=[stop_stages],
    persist_result=False,
)
def expert(recipe: Recipe, name: str) -> dict[str, Any]:
    """Train one expert of a recipe.

    Args:
        recipe: The recipe that holds the expert.
        name: Which expert, e.g. `reasoning`.
    """
    return run_flow("expert", recipe, {"name": name})
