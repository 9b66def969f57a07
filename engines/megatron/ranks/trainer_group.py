"""The driver's side of training: ranks leased together that work as one trainer or as one critic,
which learns what a token's state is worth.

async with await TrainerGroup.lease(job, ...) as trainer:
    trained = await trainer.rl_step(StepInputs(samples, algorithm, gate=True))
    report = await trainer.publish(server_urls, version)

trainer, critic = await lease_with_critic(...)
values = await critic.values(inputs)
metrics = await critic.critic_step(replace(inputs, values=values))
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.rank_group import RankGroup, RankLease
from engines.megatron.spec import Parallel
from engines.step_inputs import StepInputs, Values
from infra.errors import EngineError

if TYPE_CHECKING:
    from engines.algorithms.preference_losses import PreferenceLoss
    from engines.algorithms.reward_losses import RewardLoss
    from engines.batching import Comparison, TokenSequence
    from engines.step_inputs import StepInputs, TrainedStep, Values
    from engines.weights.transport import PublishReport


class TrainerGroup(RankGroup):
    """A policy in training; made by `lease`, or on ranks of a lease that others share."""

    @classmethod
    async def lease(
        cls,
        job: TrainerJob,
        pool_ranks: int,
        holder: str,
        *,
        shares: bool = False,
        wait_s: float = 3600.0,
        owner: Any = None,
    ) -> TrainerGroup:
        """Wait for the ranks of the job's layout, first come first served, and start a Trainer.
        `shares`: on GPUs that no other stage uses meanwhile, as the stage's servers come there too.

        Raises InputError if the pool can never have that many ranks or the model cannot be used,
        EngineError if none came free within `wait_s` or a rank failed.
        """
        ranks = job.parallel.world_size
        lease = await RankLease.take_ranks(
            ranks,
            pool_ranks,
            holder,
            tp=job.parallel.tp,
            what=f"the trainer needs {ranks}",
            wait_s=wait_s,
            owner=owner,
            is_sole=shares,
        )
        group = cls(lease, 0, ranks)
        try:
            await group.start(job)
        except BaseException:
            await group.release()
            raise
        return group

    async def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        """One optimizer step a batch; metrics of each."""
        tokens = sum(len(sequence.tokens) for batch in batches for sequence in batch)
        return await self._work("sft_steps", tokens, batches)

    async def preference_steps(
        self, loss: PreferenceLoss, batches: Sequence[Sequence[Comparison]]
    ) -> list[dict[str, float]]:
        """Take optimizer steps on comparisons; for a policy of the role `preference`."""
        return await self._work("preference_steps", _tokens(batches), loss, batches)

    async def answer_logprobs(self, sequences: Sequence[TokenSequence]) -> list[float]:
        """Return for each sequence the sum over its trained tokens; a policy of the role
        `preference`."""
        tokens = sum(len(sequence.tokens) for sequence in sequences)
        return await self._work("answer_logprobs", tokens, sequences)

    async def reward_steps(
        self, loss: RewardLoss, batches: Sequence[Sequence[Comparison]]
    ) -> list[dict[str, float]]:
        """Take optimizer steps of a reward model, which is of the role `reward`."""
        return await self._work("reward_steps", _tokens(batches), loss, batches)

    async def rewards(self, sequences: Sequence[TokenSequence]) -> list[float]:
        """Return what a reward model says of each sequence."""
        tokens = sum(len(sequence.tokens) for sequence in sequences)
        return await self._work("rewards", tokens, sequences)

    async def rl_step(self, inputs: StepInputs) -> TrainedStep:
        """Train on one batch of rollouts (`algorithm.mini_batches` optimizer steps).

        Raises AgreementError beyond the gate and TrainingStopped on NaN.
        """
        return await self._step("rl_step", inputs)

    async def token_rewards(self, inputs: StepInputs) -> Values:
        """Return what the KL term adds to each token's reward; for `kl.place: reward`."""
        return await self._step("token_rewards", inputs)

    async def load_teachers(self, folders: Mapping[str, Path], served: Sequence[str] = ()) -> None:
        """Have a frozen model for each domain (HF folders), for on-policy distillation; `served`
        are the domains whose teachers others ask.

        Raises InputError for one of another architecture, or one that is not complete.
        """
        copies = {name: self._folders.copy(folder) for name, folder in folders.items()}
        limit_s = self._state_s * max(len(folders), 1)
        await self._call("load_teachers", copies, served, timeout_s=limit_s)

    async def logprobs(
        self,
        sequences: Sequence[Sequence[int]],
        temperature: float = 1.0,
    ) -> list[list[float]]:
        """Log-probability of each token given those before it; the first of a sequence is 0."""
        return await self._work("logprobs", sum(map(len, sequences)), sequences, temperature)

    async def publish(self, endpoints: Sequence[str], version: int) -> PublishReport:
        """Put the present weights on every server and label them `version`.

        Raises EngineError if a server does not take them; the ranks work on, it can be repeated.
        """
        report = await self._call(
            "publish", endpoints, version, self._weights, timeout_s=self._state_s
        )
        if report.refused:
            raise EngineError(report.refused)
        return report


def _tokens(batches: Sequence[Sequence[Comparison]]) -> int:
    return sum(len(answer.tokens) for batch in batches for each in batch for answer in each.answers)


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
