"""The flows as Prefect runs and shows them; what each of them does is its plan, in its own file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar

from prefect import Flow, flow
from pydantic import Field

from flows.recipe import Recipe
from flows.running.chosen_stages import ChosenStages
from flows.running.prefect_run import run_flow, stop_stages, task_runner

P = ParamSpec("P")
R = TypeVar("R")
Rounds = Annotated[int, Field(ge=1, le=8)]
ALL = ChosenStages()


def _deployed(name: str, run_name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    return flow(
        name=name,
        flow_run_name=run_name,
        task_runner=task_runner(),
        on_cancellation=[stop_stages],
        persist_result=False,
    )


@_deployed("post-train", "{recipe.name}")
def post_train(recipe: Recipe, stages: ChosenStages = ALL) -> Any:
    """Train every expert, unify them, evaluate all models.

    Args:
        recipe: What to train, where, and where to store it.
        stages: Where to begin and to end, and what to run again; all of it by default.
    """
    return run_flow("post-train", recipe, stages.arguments)


@_deployed("expert", "{recipe.name}-{name}")
def expert(recipe: Recipe, name: str, stages: ChosenStages = ALL) -> Any:
    """Train one expert of a recipe.

    Args:
        recipe: The recipe that holds the expert.
        name: Which expert, e.g. `reasoning`.
        stages: Where to begin and to end, and what to run again; all of it by default.
    """
    return run_flow("expert", recipe, {"name": name} | stages.arguments)


@_deployed("distill-rounds", "{recipe.name}-{expert}-rounds")
def distill_rounds(recipe: Recipe, expert: str, rounds: Rounds = 1) -> Any:
    """Train one expert again on its own verified answers; train it first if necessary.

    Args:
        recipe: The recipe that holds the expert.
        expert: Which expert, e.g. `reasoning`.
        rounds: How many rounds this run adds to the existing ones.
    """
    return run_flow("distill-rounds", recipe, {"expert": expert, "rounds": rounds})


@_deployed("evaluate", "{recipe.name}-evaluate")
def evaluate(recipe: Recipe, models: dict[str, str]) -> Any:
    """Score models on a recipe's held-out problems.

    Args:
        recipe: Gives the domains and how to evaluate.
        models: HF folders (any fsspec URL), keyed by their names in the scores.
    """
    return run_flow("evaluate", recipe, {"models": models})


@_deployed("replay", "{recipe.name}-replay-{stage}")
def replay(
    recipe: Recipe,
    stage: str,
    flow: str = "post-train",
    arguments: dict[str, Any] | None = None,
) -> Any:
    """Train a stage again on the rollouts that it kept; the weights must be the same.

    Args:
        recipe: What the stage was trained by, with `keep_rollouts: true` in its settings.
        stage: Name of the stage, e.g. `agent-rl`.
        flow: The flow that trained it.
        arguments: That flow's arguments in addition to the recipe.
    """
    given = {"stage": stage, "flow": flow, "arguments": arguments or {}}
    return run_flow("replay", recipe, given)
