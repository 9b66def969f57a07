"""`offline`: reinforcement learning on saved rollouts alone.

    groups of `rollout`, those that can teach ─▶ so many a step, from the first again after the last

The rollouts are of the weights that the stage begins with, so each step's are older than the one's
before it: a correction keeps the updates honest (`correction`, `old_logprobs: trainer`).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path

from engines.rollout.filters import CanTeach
from engines.rollout.producer import trainable
from engines.rollout.records.packing import saved_groups
from engines.types import Group
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from tasks.offline.spec import ROLLOUTS, OfflineSpec
from tasks.rl.saved_rollouts import TrainingOnSaved
from tasks.rl.spec import RlSettings
from tasks.stage import Reporter, StageContext, require_inputs
from tasks.training_record import Updates


async def run(spec: OfflineSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]` on `inputs["rollouts"]`; `context.out` becomes an HF folder.

    Raises TrainingStopped where nothing can teach, what a step raises, Stopped.
    """
    require_inputs(context, ["model", ROLLOUTS])
    settings = spec.policy
    groups, unused = await asyncio.to_thread(
        _that_teach, context.inputs[ROLLOUTS], "spread" in settings.algorithm.needs
    )
    context.reporter.dataset(ROLLOUTS, len(groups), str(context.inputs[ROLLOUTS]))
    settings = _at_most(len(groups), settings, context.reporter)
    per_step = settings.problems_per_step
    async with AsyncExitStack() as stack:
        training = await TrainingOnSaved.begin(stack, settings, spec.seed, context, teachers={})
        for step in range(training.done + 1, settings.steps + 1):
            first = (step - 1) * per_step % len(groups)
            taken = list(islice(cycle(groups), first, first + per_step))
            await training.step(step, taken, last=settings.steps)
        _conclude(training.updates, context.reporter)
        await training.export()
    return {
        "steps": float(settings.steps),
        "groups": float(len(groups)),
        "groups_unused": float(unused),
        "passes": settings.steps * per_step / len(groups),
    }


def _conclude(updates: Updates, reporter: Reporter) -> None:
    """Raises TrainingStopped where no step trained anything."""
    if not updates.made:
        raise TrainingStopped(
            f"nothing was trained: none of {updates.skipped} steps made an update, as no token of"
            " their groups may be trained on; sample again with a larger `max_new_tokens`, or look"
            " at `algorithm.truncated`"
        )
    updates.require_gradient("The advantages are all 0: look at the rewards of the rollouts")
    for warning in updates.warnings():
        reporter.keep_warning(warning)


def _at_most(groups: int, settings: RlSettings, reporter: Reporter) -> RlSettings:
    """With steps of no more groups than there are: none is in a step twice."""
    wanted = settings.problems_per_step
    if wanted <= groups:
        return settings
    reporter.keep_warning(
        StageWarning(
            what=f"a step trains on {groups} groups, not on {wanted}",
            cause="the rewards of the other groups are equal, or their rollouts failed",
            advice="sample more problems, or others",
            figures={"groups": groups, "wanted": wanted},
        )
    )
    return settings.model_copy(update={"problems_per_step": groups})


def _that_teach(artifact: Path, needs_spread: bool) -> tuple[list[Group], int]:
    """The groups that can teach, and how many cannot. Raises TrainingStopped if none can."""
    everything, rule = list(saved_groups(artifact)), CanTeach(needs_spread)
    groups = [g for g in everything if trainable(g).samples and rule.keep(g) is True]
    if not groups:
        raise TrainingStopped(
            f"none of {len(everything)} groups can teach: their rewards are equal, or their"
            " rollouts failed; sample more problems, or others"
        )
    return groups, len(everything) - len(groups)
