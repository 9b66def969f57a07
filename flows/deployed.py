"""The flows as Prefect runs and shows them; what each of them does is its plan, in its own file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Flow, flow

from flows.page.form import (
    Changes,
    Models,
    RecipeField,
    Rounds,
    RunName,
    Seed,
    Stages,
    models_of,
    stages_of,
)
from flows.running.prefect_run import run_flow, stop_stages, task_runner

P = ParamSpec("P")
R = TypeVar("R")


def _deployed(name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    return flow(
        name=name,
        task_runner=task_runner(),
        on_cancellation=[stop_stages],
        persist_result=False,
    )


@_deployed("post-train")
def post_train(
    recipe: RecipeField,
    overrides: Changes = "",
    seed: Seed = "",
    name: RunName = "",
    stages: Stages = "",
) -> Any:
    """Train every expert, unify them, evaluate all models.

    Args:
        recipe: One by name (`tributary save` adds yours), or a whole one.
        overrides: Changes of its fields, one a line, e.g. `unified.path.rl.steps=4`.
        seed: Another seed than the recipe's.
        name: A name for this run.
        stages: All; or lines `from=`, `until=`, `only=` (a stage's name), `force=` (run it again).
    """
    form = _form(recipe, overrides, seed, name)
    return run_flow("post-train", form, lambda: stages_of(stages).arguments)


@_deployed("expert")
def expert(
    recipe: RecipeField,
    expert: str,
    overrides: Changes = "",
    seed: Seed = "",
    name: RunName = "",
    stages: Stages = "",
) -> Any:
    """Train one expert of a recipe.

    Args:
        recipe: One by name (`tributary save` adds yours), or a whole one.
        expert: Which of its experts, e.g. `reasoning`.
        overrides: Changes of its fields, one a line, e.g. `experts.agent.path.rl.steps=4`.
        seed: Another seed than the recipe's.
        name: A name for this run.
        stages: All; or lines `from=`, `until=`, `only=` (a stage's name), `force=` (run it again).
    """
    form = _form(recipe, overrides, seed, name)
    return run_flow("expert", form, lambda: {"name": expert} | stages_of(stages).arguments)


@_deployed("distill-rounds")
def distill_rounds(
    recipe: RecipeField,
    expert: str,
    rounds: Rounds = 1,
    overrides: Changes = "",
    seed: Seed = "",
    name: RunName = "",
) -> Any:
    """Train one expert again on its own verified answers; train it first if necessary.

    Args:
        recipe: One by name (`tributary save` adds yours), or a whole one.
        expert: Which of its experts, e.g. `reasoning`.
        rounds: How many rounds this run adds to the existing ones.
        overrides: Changes of its fields, one a line, e.g. `unified.path.rl.steps=4`.
        seed: Another seed than the recipe's.
        name: A name for this run.
    """
    form = _form(recipe, overrides, seed, name)
    return run_flow("distill-rounds", form, lambda: {"expert": expert, "rounds": rounds})


@_deployed("evaluate")
def evaluate(
    recipe: RecipeField,
    models: Models,
    overrides: Changes = "",
    seed: Seed = "",
    name: RunName = "",
) -> Any:
    """Score models on a recipe's held-out problems.

    Args:
        recipe: Gives the domains and how to evaluate: one by name, or a whole one.
        models: HF folders (any fsspec URL), one a line: `NAME=FOLDER`.
        overrides: Changes of its fields, one a line, e.g. `evaluate.problems=64`.
        seed: Another seed than the recipe's.
        name: A name for this run.
    """
    form = _form(recipe, overrides, seed, name)
    return run_flow("evaluate", form, lambda: {"models": models_of(models)})


@_deployed("replay")
def replay(
    recipe: RecipeField,
    stage: str,
    flow: str = "post-train",
    arguments: dict[str, Any] | None = None,
    overrides: Changes = "",
    seed: Seed = "",
    name: RunName = "",
) -> Any:
    """Train a stage again on the rollouts that it kept; the weights must be the same.

    Args:
        recipe: What the stage was trained by, with `keep_rollouts: true` in its settings.
        stage: Name of the stage, e.g. `agent-rl`.
        flow: The flow that trained it.
        arguments: That flow's arguments in addition to the recipe.
        overrides: Changes of the recipe's fields that the stage was trained with, one a line.
        seed: The seed that it was trained with, if not the recipe's.
        name: A name for this run.
    """
    given = {"stage": stage, "flow": flow, "arguments": arguments or {}}
    return run_flow("replay", _form(recipe, overrides, seed, name), lambda: given)


def _form(recipe: Any, overrides: str, seed: str, name: str) -> dict[str, Any]:
    return {"recipe": recipe, "overrides": overrides, "seed": seed, "name": name}
