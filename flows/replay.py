"""Replay one stage: train it again on the rollouts that it kept, and compare the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flows.explain import nearest
from flows.plan import PlannedStage
from flows.running.chosen_stages import needed_by
from infra.errors import InputError
from tasks.replay.spec import ROLLOUTS, ReplaySpec


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
