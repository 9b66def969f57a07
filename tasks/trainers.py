"""The trainer's ranks that a stage leases."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tasks.stage import StageContext

if TYPE_CHECKING:
    from engines.megatron.ranks.rank import TrainerJob
    from engines.megatron.ranks.trainer_group import TrainerGroup


async def lease_trainer(
    stack: AsyncExitStack, context: StageContext, job: TrainerJob, *, shares: bool = False
) -> TrainerGroup:
    """Lease the stage's trainer ranks, loaded; released with the stack. `shares`: the stage's
    servers come to the same devices."""
    from engines.megatron.ranks.trainer_group import TrainerGroup

    with context.pulse.waiting():
        trainer = await TrainerGroup.lease(
            job,
            pool_ranks=context.pool.trainer_ranks,
            holder=context.holder,
            shares=shares,
        )
    stack.push_async_callback(trainer.release)
    return trainer
