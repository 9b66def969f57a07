"""The trained roles of an RL stage: a policy and, where the algorithm has one, a critic."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from engines.chat import Chat
from engines.chat.chat_folder import write_stops
from engines.megatron.ranks import trainer_group
from engines.megatron.ranks.rank import TrainerJob
from engines.megatron.ranks.rank_group import RankGroup
from engines.megatron.ranks.trainer_group import CriticGroup, TrainerGroup
from engines.rollout.consumer import BeforePublish, Consumer, at_once
from engines.rollout.protocols import PublishedWeights
from engines.sglang.servers.server_units import TrainerDevices
from engines.weights.spec import WeightTransport
from infra.processes.coroutines import run_both
from tasks.resources import lease_trainer
from tasks.rl.spec import RlSettings
from tasks.saving import Written
from tasks.stage import StageContext
from tasks.training_record import changed_share

_TRAINER_FOLDER = "trainer"
CRITIC_FOLDER = "critic"
"""of a checkpoint, and of the artifact"""


@dataclass(frozen=True, slots=True)
class Roles:
    """The groups of ranks that train them; both are saved, continued and exported together."""

    trainer: TrainerGroup
    critic: CriticGroup | None = None

    @property
    def groups(self) -> Mapping[str, RankGroup]:
        """By name."""
        of_critic = {} if self.critic is None else {"critic": self.critic}
        return {"trainer": self.trainer, **of_critic}

    @property
    def devices(self) -> TrainerDevices:
        """Return the devices of the ranks of all roles, each once."""
        gpus = (number for group in self.groups.values() for number in group.gpus)
        return TrainerDevices(tuple(dict.fromkeys(gpus)))

    async def begin_save(self, folder: Path) -> Written:
        """Into a checkpoint's folder, side by side; training may go on when this returns."""
        begun = self.trainer.begin_save(folder / _TRAINER_FOLDER)
        if self.critic is None:
            await begun
            return self.trainer.saved
        critic = self.critic
        await run_both(begun, critic.begin_save(folder / CRITIC_FOLDER))
        return lambda: run_both(self.trainer.saved(), critic.saved())

    async def load(self, folder: Path) -> None:
        await self.trainer.load(folder / _TRAINER_FOLDER)
        if self.critic is not None:
            await self.critic.load(folder / CRITIC_FOLDER)

    async def export(self, out: Path, model: Path) -> float:
        """Write the policy as an HF folder like `model` that lists the stop tokens it was trained
        with, and the critic into a folder in it. -> the share of weights that changed."""
        await self.trainer.export(out, model)
        write_stops(out, Chat.load(model).stop_token_ids)
        if self.critic is not None:
            await self.critic.export(out / CRITIC_FOLDER, model)
        return await changed_share(model, out)


def consumer_of(
    roles: Roles,
    settings: RlSettings,
    policy: PublishedWeights,
    before_publish: BeforePublish = at_once,
) -> Consumer:
    """Return what makes a stage's optimizer steps."""
    return Consumer(
        trainer=roles.trainer,
        policy=policy,
        algorithm=settings.algorithm,
        groups_per_step=settings.problems_per_step,
        critic=roles.critic,
        critic_only_steps=settings.critic_only_steps,
        before_publish=before_publish,
    )


async def lease_roles(
    stack: AsyncExitStack, settings: RlSettings, seed: int, context: StageContext, model: Path
) -> Roles:
    """Lease the ranks of all roles, loaded with `model`; released with the stack."""
    critic = settings.critic_role
    policy_job = TrainerJob(
        settings.trainer,
        settings.optimizer,
        context.resources.trainer,
        model,
        seed,
        settings.updates,
        context.hooks,
        weights=_weights(context),
    )
    if critic is None:
        return Roles(
            await lease_trainer(stack, context, policy_job, shares=context.resources.share)
        )
    critic_job = TrainerJob(
        critic.trainer_beside(settings.trainer),
        critic.optimizer_beside(settings.optimizer),
        context.resources.of_critic,
        model,
        seed,
        settings.steps * settings.algorithm.mini_batches * critic.steps_per_policy_step,
        context.hooks,
        critic,
    )
    return Roles(*await _lease_with_critic(stack, context, policy_job, critic_job))


def _weights(context: StageContext) -> WeightTransport:
    """Return how they reach the servers, in a folder of the stage's own."""
    wanted = context.resources.weights
    url = wanted.url and f"{wanted.url.rstrip('/')}/{context.folder_name}"
    return wanted.model_copy(update={"url": url})


async def _lease_with_critic(
    stack: AsyncExitStack, context: StageContext, policy: TrainerJob, critic: TrainerJob
) -> tuple[TrainerGroup, CriticGroup]:
    """Lease and load the ranks of both roles together; released with the stack."""
    with context.pulse.waiting():
        groups = await trainer_group.lease_with_critic(
            policy,
            critic,
            pool_ranks=context.pool.trainer_ranks,
            holder=context.holder,
            shares=context.resources.share,
        )
    stack.push_async_callback(groups[0].release)
    return groups
