"""Iterative self-distillation of one expert: its verified answers teach a fresh cold start.

    base -> sft -> rl -> (distill -> sft -> rl) x rounds -> evaluate in its domain

Schedulable on its own: what earlier runs made is cached, so a higher `rounds` adds rounds.
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.prefect_run import run_flow, stop_stages, task_runner
from flows.recipe import Recipe


@flow(
    name="distill-rounds",
    flow_run_name="{recipe.name}-{expert}-rounds",
    task_runner=task_runner(),
    on_cancellation=[stop_stages],
    persist_result=False,
)
def distill_rounds(recipe: Recipe, expert: str, rounds: int = 1, run: str = "") -> dict[str, Any]:
    """Train one expert and then again on its own verified answers.

    Args:
        recipe: The recipe that holds the expert.
        expert: Which expert, e.g. `reasoning`.
        rounds: How many times.
        run: An earlier run to continue; empty starts a new one.
    """
    return run_flow("distill-rounds", recipe, run, {"expert": expert, "rounds": rounds})
