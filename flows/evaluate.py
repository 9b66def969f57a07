"""Evaluate and compare any models: import each HF folder, then score all in the same way."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.recipe import Recipe
from flows.running.prefect_run import run_flow, stop_stages, task_runner


@flow(
    name="evaluate",
    flow_run_name="{recipe.name}-evaluate",
    task_runner=task_runner(),
    on_cancellation=[stop_stages],
    persist_result=False,
)
def evaluate(recipe: Recipe, models: dict[str, str]) -> dict[str, Any]:
    """Score models on a recipe's held-out problems.

    Args:
        recipe: Gives the domains and how to evaluate.
        models: HF folders (any fsspec URL), keyed by their names in the scores.
    """
    return run_flow("evaluate", recipe, {"models": models})
