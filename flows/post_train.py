"""Expert-then-unified:

    base -> {expert: sft -> rl} -> distill -> unified-sft (from base) -> unified-rl -> evaluate

With `unify: sft+opd` the experts score the unified model's own answers before its RL; with `opd`
that takes the place of distill and SFT.
`flows.plan.plan_post_train` says it top to bottom; here it runs.
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.recipe import Recipe
from flows.running.prefect_run import run_flow, stop_stages, task_runner


@flow(
    name="post-train",
    flow_run_name="{recipe.name}",
    task_runner=task_runner(),
    on_cancellation=[stop_stages],
    persist_result=False,
)
def post_train(recipe: Recipe) -> dict[str, Any]:
    """Train every expert, unify them, evaluate all models.

    Args:
        recipe: What to train, where, and where to store it.
    """
    return run_flow("post-train", recipe, {})
