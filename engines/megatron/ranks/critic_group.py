"""The driver's side of a critic: ranks that learn what a token's state is worth.

trainer, critic = await lease_with_critic(...)
values = await critic.values(samples, algorithm)
metrics = await critic.critic_step(samples, algorithm, values)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engines.megatron.ranks.lease import RankLease
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.rank_group import STEP_S, RankGroup
from engines.megatron.ranks.trainer_group import TrainerGroup
from engines.types import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engines.algorithms.spec import Algorithm


class CriticGroup(RankGroup):
    """A critic in training, on ranks of its policy's lease."""

    async def values(
        self, samples: Sequence[Sample], algorithm: Algorithm, *, timeout_s: float = STEP_S
    ) -> NDArray[np.float32]:
        """The present values of the trainable samples' tokens, end to end."""
        return await self._call("values", samples, algorithm, timeout_s=timeout_s)

    async def critic_step(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        values: NDArray[np.float32],
        token_rewards: NDArray[np.float32] | None = None,
        *,
        timeout_s: float = STEP_S,
    ) -> dict[str, float]:
        """Learn from one batch of rollouts, of which the critic said `values` before. Raises
        TrainingStopped on NaN."""
        return await self._call(
            "critic_step", samples, algorithm, values, token_rewards, timeout_s=timeout_s
        )


async def lease_with_critic(
    policy: TrainerJob,
    critic: TrainerJob,
    pool_ranks: int,
    holder: str,
    *,
    wait_s: float = 3600.0,
    pool: Any = None,
) -> tuple[TrainerGroup, CriticGroup]:
    """Wait for the ranks of both, and start both. Releasing either group ends the lease of both.

    Raises as `TrainerGroup.lease`.
    """
    of_policy, of_critic = policy.parallel.world_size, critic.parallel.world_size
    lease = await RankLease.take(
        of_policy + of_critic,
        pool_ranks,
        holder,
        what=f"trainer and critic need {of_policy} + {of_critic}",
        wait_s=wait_s,
        pool=pool,
    )
    groups = TrainerGroup(lease, 0, of_policy), CriticGroup(lease, of_policy, of_critic)
    try:
        await asyncio.gather(groups[0].start(policy), groups[1].start(critic))
    except BaseException:
        await lease.release()
        raise
    return groups
