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
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engines.megatron.hf.folder import HfWeights
from engines.rollout.records.take_log import Take, groups_of, kept_takes
from infra.errors import InputError
from tasks.replay.spec import ROLLOUTS, ReplaySpec
from tasks.rl.saved_rollouts import TrainingOnSaved
from tasks.rl.spec import RlSettings
from tasks.rl.trained_roles import CRITIC_FOLDER
from tasks.stage import StageContext, require_inputs


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """Example: WeightDifference(tensors=86, differing=("model.norm.weight",), largest=1.2e-7)"""

    tensors: int
    """in either folder"""
    differing: tuple[str, ...]
    """names of those that differ in a bit, or are in one folder alone"""
    largest: float
    """distance of two values; 0 where none differs, infinite where two cannot be compared"""


def weight_difference(one: Path, other: Path) -> WeightDifference:
    """Compare two HF folders tensor by tensor. Raises InputError for one that lacks its weights."""
    first, second = HfWeights(one), HfWeights(other)
    names = sorted({*first.file_of, *second.file_of})
    differing: list[str] = []
    largest = 0.0
    for name in names:
        if name not in first.file_of or name not in second.file_of:
            distance = math.inf
        else:
            a, b = first.read(name), second.read(name)
            if _same_bits(a, b):
                continue
            distance = _distance(a, b)
        differing.append(name)
        largest = max(largest, distance)
    return WeightDifference(len(names), tuple(differing), largest)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return math.inf
    gap = float((a.double() - b.double()).abs().max())
    return math.inf if math.isnan(gap) else gap


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
