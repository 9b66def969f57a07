"""`replay`: trains a finished stage again, from the rollouts that it kept.

    model ─▶ ranks ─▶ for each recorded step: its groups ─▶ the step of `rl` ─▶ same weights?
                         no servers, no sampling, no rewards

On hosts without a GPU the weights must be the same to the bit; the metrics say whether they are. So
a step that went wrong can be looked at again, with a debugger or with changed code, as often as
one wants.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AsyncExitStack
from pathlib import Path

from engines.rollout.records.take_log import Take, groups_of, kept_takes
from infra.errors import InputError
from tasks.replay.spec import ROLLOUTS, ReplaySpec
from tasks.replay.weight_difference import WeightDifference, weight_difference
from tasks.rl.roles import CRITIC_FOLDER
from tasks.rl.saved_rollouts import TrainingOnSaved
from tasks.rl.spec import RlSettings
from tasks.stage import StageContext, require_inputs

_NAMED = 3
"""differing tensors that the log names"""
_log = logging.getLogger(__name__)


async def run(spec: ReplaySpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]` on what `inputs["rollouts"]` was trained on; `context.out` becomes an
    HF folder, which is compared with the latter.

    Raises InputError for an artifact without rollouts; what a step raises; Stopped.
    """
    require_inputs(context, ["model", ROLLOUTS, *spec.teachers])
    recorded = context.inputs[ROLLOUTS]
    takes = await asyncio.to_thread(kept_takes, recorded)
    teachers = {name: context.inputs[name] for name in spec.teachers}
    async with AsyncExitStack() as stack:
        settings = _without_gate(spec.settings)
        training = await TrainingOnSaved.begin(stack, settings, spec.seed, context, teachers)
        for take in takes:
            if take.step > training.done:
                _check_version(take, training.policy.version)
                groups = await asyncio.to_thread(groups_of, recorded, take)
                await training.step(take.step, groups, last=takes[-1].step)
        await training.export()
    found = await asyncio.to_thread(_compared, context.out, recorded)
    if found.differing:
        _log.warning("%d tensors differ: %s ...", len(found.differing), found.differing[:_NAMED])
    return {
        "steps": float(len(takes)),
        "tensors": float(found.tensors),
        "tensors_differing": float(len(found.differing)),
        "largest_difference": found.largest,
    }


def _without_gate(settings: RlSettings) -> RlSettings:
    """A replay that goes another way differs from the engine of then: that is what it shows."""
    algorithm = settings.algorithm.model_copy(update={"agreement_gate": math.inf})
    return settings.model_copy(update={"algorithm": algorithm})


def _check_version(take: Take, version: int) -> None:
    if take.version != version:
        raise InputError(
            f"step {take.step} was trained at version {take.version}, but the replay is at"
            f" {version}: the rollouts kept are not those of one training"
        )


def _compared(made: Path, recorded: Path) -> WeightDifference:
    """The policy and, where there is one, the critic."""
    policy = weight_difference(made, recorded)
    if not (made / CRITIC_FOLDER).exists():
        return policy
    critic = weight_difference(made / CRITIC_FOLDER, recorded / CRITIC_FOLDER)
    named = tuple(f"{CRITIC_FOLDER}/{name}" for name in critic.differing)
    return WeightDifference(
        policy.tensors + critic.tensors,
        policy.differing + named,
        max(policy.largest, critic.largest),
    )
