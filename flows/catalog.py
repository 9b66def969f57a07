"""Lists the flows by name, as the command and a resumed run find them, with replay. Imports no
Prefect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from flows.explain import nearest
from flows.plan import PlannedStage
from flows.post_train import FLOW as DISTILL_ROUNDS
from flows.post_train import plan_distill_rounds, plan_evaluate, plan_expert, plan_post_train
from flows.recipe import Recipe
from flows.running.chosen_stages import chosen_of, narrowed, needed_by
from infra.errors import InputError
from tasks.replay.spec import ROLLOUTS, ReplaySpec

FLOWS = ("post-train", "expert", DISTILL_ROUNDS, "evaluate", "replay")


def plan_replay(plan: Sequence[PlannedStage], name: str) -> list[PlannedStage]:
    """The stage `name` of a plan with all that it is made from, which is cached after a run, and
    its replay. Raises InputError."""
    stages = {stage.name: stage for stage in plan}
    if name not in stages:
        raise InputError(
            f"no stage `{name}` to replay; there are {', '.join(stages)}{nearest(name, stages)}"
        )
    stage = stages[name]
    try:
        spec = ReplaySpec.of(stage.spec)
    except InputError as error:
        raise InputError(f"stage {name} cannot be replayed: {error}") from None
    inputs = {**stage.inputs, ROLLOUTS: name}
    repeated = replace(
        stage, name=f"{name}-replay", spec=spec, inputs=inputs, model="", scored_as="",
        is_stored=False, again=False,
    )  # fmt: skip
    needed = needed_by([name], stages)
    made = [replace(stage, again=False) for stage in plan if stage.name in needed]
    return [*made, repeated]


def plan_of(flow: str, recipe: Recipe, arguments: Mapping[str, Any]) -> list[PlannedStage]:
    """Return what a run of a flow does, given its arguments in addition to the recipe."""
    return narrowed(_whole_plan(flow, recipe, arguments), chosen_of(arguments))


def _whole_plan(flow: str, recipe: Recipe, arguments: Mapping[str, Any]) -> list[PlannedStage]:
    match flow:
        case "post-train":
            return plan_post_train(recipe)
        case "expert":
            return plan_expert(recipe, _expert(recipe, _given(arguments, "name", str)))
        case "distill-rounds":
            expert = _expert(recipe, _given(arguments, "expert", str))
            # `after` is how many rounds there were when the run began; absent: none.
            rounds = int(arguments.get("after", 0)) + _given(arguments, "rounds", int)
            return plan_distill_rounds(recipe, expert, rounds)
        case "evaluate":
            return plan_evaluate(recipe, _given(arguments, "models", dict))
        case "replay":
            given = _given(arguments, "arguments", dict)
            replayed = plan_of(_given(arguments, "flow", str), recipe, given)
            return plan_replay(replayed, _given(arguments, "stage", str))
        case _:
            raise InputError(f"no flow `{flow}` among {', '.join(FLOWS)}{nearest(flow, FLOWS)}")


Kind = TypeVar("Kind", str, int, dict[str, Any])
_KINDS = {str: "a text", int: "a number", dict: "a mapping"}


def _given(arguments: Mapping[str, Any], name: str, kind: type[Kind]) -> Kind:
    """Return an argument of a flow. Raises InputError for one that is missing or of another
    kind."""
    value = arguments.get(name)
    if not isinstance(value, kind):
        raise InputError(
            f"`{name}` among the flow's arguments must be {_KINDS[kind]}; got {value!r:.80}"
        )
    return value


def _expert(recipe: Recipe, name: str) -> str:
    if name not in recipe.experts:
        known = ", ".join(recipe.experts)
        raise InputError(
            f"recipe {recipe.name} has no expert `{name}`; it has {known}"
            f"{nearest(name, recipe.experts)}"
        )
    return name
