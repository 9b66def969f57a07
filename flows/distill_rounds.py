"""Iterative self-distillation of one expert: its verified answers teach a fresh cold start.

    base -> sft -> rl -> (distill -> sft -> rl) x rounds -> evaluate in its domain

Schedulable: each trigger continues from the newest round of the same settings, on problems that no
round used before, and with the curriculum options that `round_options` gives the round.
"""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.recipe import Recipe
from flows.running.prefect_run import run_flow, stop_stages, task_runner

Rounds = Annotated[int, Field(ge=1, le=8)]


@flow(
    name="distill-rounds",
    flow_run_name="{recipe.name}-{expert}-rounds",
    task_runner=task_runner(),
    on_cancellation=[stop_stages],
    persist_result=False,
)
def distill_rounds(recipe: Recipe, expert: str, rounds: Rounds = 1) -> dict[str, Any]:
    """Train one expert again on its own verified answers; train it first if necessary.

    Args:
        recipe: The recipe that holds the expert.
        expert: Which expert, e.g. `reasoning`.
        rounds: How many rounds this run adds to the existing ones.
    """
    return run_flow("distill-rounds", recipe, {"expert": expert, "rounds": rounds})
