"""The driver's side of a critic: ranks that learn what a token's state is worth.

trainer, critic = await lease_with_critic(...)
values = await critic.values(inputs)
metrics = await critic.critic_step(replace(inputs, values=values))
"""

from __future__ import annotations

import asyncio
from math import lcm
from typing import Any

from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.rank_group import RankGroup, RankLease
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.megatron.spec import Parallel
from engines.step_inputs import StepInputs, Values


class CriticGroup(RankGroup):
    """A critic in training, on ranks of its policy's lease."""

    async def values(self, inputs: StepInputs) -> Values:
        """The present values of the trainable samples' tokens, end to end."""
        return await self._step("values", inputs)

    async def critic_step(self, inputs: StepInputs) -> dict[str, float]:
        """Learn from one batch of rollouts, with the values that the critic gave before. Raises
        TrainingStopped on NaN."""
        return await self._step("critic_step", inputs)


async def lease_with_critic(
    policy: TrainerJob,
    critic: TrainerJob,
    pool_ranks: int,
    holder: str,
    *,
    shares: bool = False,
    wait_s: float = 3600.0,
    owner: Any = None,
) -> tuple[TrainerGroup, CriticGroup]:
    """Wait for the ranks of both, and start both. Releasing either group ends the lease of both.

    Raises as `TrainerGroup.lease`.
    """
    of_policy, of_critic = policy.parallel.world_size, critic.parallel.world_size
    lease = await RankLease.take_ranks(
        of_policy + of_critic,
        pool_ranks,
        holder,
        tp=neighbours(policy.parallel, critic.parallel),
        what=f"trainer and critic need {of_policy} + {of_critic}",
        wait_s=wait_s,
        owner=owner,
        is_sole=shares,
    )
    groups = TrainerGroup(lease, 0, of_policy), CriticGroup(lease, of_policy, of_critic)
    try:
        await asyncio.gather(groups[0].start(policy), groups[1].start(critic))
    except BaseException:
        await lease.release()
        raise
    return groups


def neighbours(policy: Parallel, critic: Parallel) -> int:
    """Ranks that have to be on one host, so that each tensor-parallel group of both is.

    Example: neighbours(Parallel(tp=2, dp=2), Parallel(tp=4)) -> 4
    """
    of_both = lcm(policy.tp, critic.tp)
    # Else groups of the critic would begin within those of the policy.
    fits = policy.world_size % of_both == critic.world_size % of_both == 0
    return of_both if fits else policy.world_size + critic.world_size
