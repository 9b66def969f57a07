"""`rl`: reinforcement learning with verifiable rewards over one or more domains."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from engines.algorithms.spec import Algorithm
from engines.megatron.roles import ROLES
from engines.megatron.spec import Critic, Optimizer, Trainer
from engines.sglang.spec import FleetSpec
from infra.config import RESULT_NEUTRAL, Config, PerStep, Steps
from infra.together import together
from tasks.domain import Domain
from tasks.stage import StageContext, StageSpec, Stopped

if TYPE_CHECKING:
    from engines.chat import Chat
    from engines.rollout.buffer import RolloutBuffer
    from engines.rollout.producer import Producer
    from engines.rollout.seams import LiveDomain
    from engines.rollout.served import ServedPolicy
    from engines.sglang.fleet import Fleet
    from tasks.rl_record import RlRecord
    from tasks.rl_roles import Roles
    from tasks.saving import Saving


class Bounds(Config):
    """When to stop early, with a reason."""

    solved_reward: float = Field(default=0.97, ge=0)
    """if the mean outcome of three steps in a row reaches this, the stage ends as solved"""
    min_outcome: float = Field(default=0.0, ge=0, le=1)
    """if the mean outcome of five steps falls below this, the run stops (collapse)"""
    max_entropy: float | None = None
    """if the mean entropy of five steps (nats per token) is above this, the run stops (collapse)"""
    max_failed_share: float = Field(default=0.2, ge=0, le=1)
    """if the share of failed samples in a step is above this, the run stops"""


class RlSettings(Config):
    steps: Steps
    problems_per_step: PerStep = 32
    group_size: PerStep = 8
    oversample: float = Field(default=1.5, ge=1)
    """problems drawn divided by problems still needed, in each round of generation. No effect with
    an advantage that does not compare rewards within a group: every group is kept"""
    refill_rounds: int = Field(default=1, ge=0)
    """largest number of further rounds in a step; they replace groups with equal rewards"""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """policy versions between sampling and training; 0 is synchronous. With k, k + 1 batches are
    sampled before the first step and one after each publish, in turns with training: batches are
    exactly 0, 1, ..., k, k, k, ... versions old (less old only after a skipped update)"""
    algorithm: Algorithm = Field(default=Algorithm(), json_schema_extra={"default": {}})
    optimizer: Optimizer
    critic: Critic | None = None
    """settings of the critic, for advantage gae (presets ppo, sao); None: its defaults"""
    trainer: Trainer = Trainer()
    fleet: FleetSpec = FleetSpec()
    bounds: Bounds = Bounds()
    checkpoint_every: Annotated[PositiveInt, RESULT_NEUTRAL] = 10
    """steps"""

    @property
    def most_problems(self) -> int:
        """No stage draws more problems than this."""
        a_round = math.ceil(self.problems_per_step * self.oversample)
        return self.steps * (1 + self.refill_rounds) * a_round

    @property
    def critic_role(self) -> Critic | None:
        """What its critic is trained with; None if its algorithm has none."""
        return (self.critic or Critic()) if self.algorithm.has_critic else None


class RlSpec(StageSpec):
    """Input: `model`."""

    kind: ClassVar[str] = "rl"
    settings: RlSettings
    domains: list[Domain] = Field(min_length=1)
    """problems of a step are drawn from them in turn"""
    start: int = Field(default=0, ge=0)
    """position of each domain's first problem: a later round takes problems that none had"""

    @property
    def parts(self) -> tuple[str, ...]:
        critic = (ROLES["critic"],) if self.settings.algorithm.has_critic else ()
        return (ROLES["policy"], *critic)


async def run(spec: RlSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`.

    Raises TrainingStopped, AgreementError, EngineError, InputError; Stopped after a checkpoint.
    """
    return await train(spec, context, teachers={})


async def train(
    spec: RlSpec, context: StageContext, teachers: Mapping[str, Path]
) -> dict[str, float]:
    """The same, of which `opd` is the case with `teachers`: model folders by domain. They judge
    every token, so no group is dropped because its rewards are equal."""
    from engines.rollout.bounds import Watch
    from engines.rollout.buffer import RolloutBuffer
    from engines.rollout.gallery import Gallery
    from engines.rollout.served import ServedPolicy
    from tasks.resources import open_parts
    from tasks.rl_record import RlRecord
    from tasks.saving import Saving

    model = context.inputs["model"]
    async with AsyncExitStack() as stack:
        (roles, fleet), (chat, domains) = await together(
            _lease(stack, spec, context, model), open_parts(stack, model, spec.domains)
        )
        watch = Watch(**spec.settings.bounds.model_dump())
        record = RlRecord(
            watch=watch,
            gallery=Gallery(chat),
            reporter=context.reporter,
            steps=spec.settings.steps,
        )
        if teachers:
            await roles.trainer.load_teachers(teachers)
        buffer = RolloutBuffer(max_staleness=spec.settings.max_staleness)
        served = ServedPolicy(roles.trainer, fleet, record.version)
        stack.push_async_callback(served.close)
        fleet.client.on_trouble = served.mend
        await _resume(context, record, buffer, roles, served)
        saving = await stack.enter_async_context(Saving(context, record.checkpointed))
        began = time.monotonic()
        await _train(
            spec,
            context,
            record,
            buffer,
            saving,
            _producer(spec, context, chat, domains, fleet, has_teachers=bool(teachers)),
            roles,
            served,
        )
        worked = time.monotonic() - began
        await roles.export(context.out, model)
        record.write_rollouts(context.out)
        return {**record.summary(), "work_seconds": worked}


async def _lease(
    stack: AsyncExitStack, spec: RlSpec, context: StageContext, model: Path
) -> tuple[Roles, Fleet]:
    """Ranks first, then servers: every stage in this order, or two could wait for each other."""
    from engines.sglang.fleet import prewarm
    from tasks.resources import lease_fleet
    from tasks.rl_roles import lease_roles

    # A manager that hangs is given a time of its own before it is replaced.
    with context.pulse.waiting():
        await prewarm(context.pool.servers, context.resources.tp_per_server)
    roles = await lease_roles(stack, spec, context, model)
    return roles, await lease_fleet(stack, context, spec.settings.fleet, model)


def _producer(
    spec: RlSpec,
    context: StageContext,
    chat: Chat,
    domains: list[LiveDomain],
    fleet: Fleet,
    *,
    has_teachers: bool,
) -> Producer:
    from engines.rollout.episode import Roller
    from engines.rollout.journal import RolloutJournal
    from engines.rollout.producer import Producer
    from engines.rollout.source import ProblemSource
    from tasks.resources import context_length

    settings = spec.settings
    # Teachers judge every token, whatever the rewards of its group.
    needs_spread = settings.algorithm.needs_group_spread and not has_teachers
    return Producer(
        roller=Roller(
            generate=fleet.client.generate,
            chat=chat,
            context_length=context_length(settings.fleet, context.inputs["model"]),
            seed=spec.seed,
        ),
        source=ProblemSource(domains, split="rl", seed=spec.seed, start=spec.start),
        groups_per_step=settings.problems_per_step,
        group_size=settings.group_size,
        oversample=settings.oversample if needs_spread else 1.0,
        rounds=1 + settings.refill_rounds,
        temperature=settings.algorithm.temperature,
        needs_spread=needs_spread,
        journal=RolloutJournal(context.checkpoints),
    )


async def _resume(
    context: StageContext,
    record: RlRecord,
    buffer: RolloutBuffer,
    roles: Roles,
    served: ServedPolicy,
) -> None:
    """Continue from the newest checkpoint, if there is one: the fleet gets its weights too."""
    latest = await asyncio.to_thread(context.checkpoints.latest)
    if latest is None:
        return
    _, folder = latest
    record.restore(folder)
    buffer.restore(folder, record.version)
    await roles.load(folder)
    await served.publish(record.version)


async def _train(
    spec: RlSpec,
    context: StageContext,
    record: RlRecord,
    buffer: RolloutBuffer,
    saving: Saving,
    producer: Producer,
    roles: Roles,
    served: ServedPolicy,
) -> None:
    """Run the loop from where the record stands to the end of the stage."""
    from engines.rollout.consumer import Consumer, StepResult
    from engines.rollout.loop import train_loop

    settings, critic = spec.settings, spec.settings.critic_role

    async def after_step(result: StepResult) -> bool:
        record.observe(result)
        over = record.solved or record.step == settings.steps
        stopping = context.stop.requested and not over
        if stopping or (record.step % settings.checkpoint_every == 0 and not over):
            snapshot = partial(_snapshot, record, buffer, roles)
            await saving.begin(record.step, record.score, snapshot)
        if stopping:
            raise Stopped(
                f"stopped after step {record.step}; the stage continues from this checkpoint"
            )
        return over

    async def before_update() -> None:
        await served.settled()
        await saving.unchanged()

    sampled_to = buffer.cursor or record.cursor
    if sampled_to is not None:
        producer.source.seek(sampled_to)
    await train_loop(
        producer,
        Consumer(
            trainer=roles.trainer,
            publish=served.publish,
            algorithm=settings.algorithm,
            version=record.version,
            critic=roles.critic,
            critic_only_steps=critic.warmup_steps if critic else 0,
        ),
        buffer,
        first=record.step + 1,
        last=settings.steps,
        after_step=after_step,
        before_update=before_update,
    )


def _snapshot(
    record: RlRecord, buffer: RolloutBuffer, roles: Roles, folder: Path
) -> Coroutine[Any, Any, object]:
    """Record and buffer as they are now; the ranks stay as they are until the next update."""
    write_rollouts = record.save(folder)
    buffer.save(folder)
    return together(roles.save(folder), asyncio.to_thread(write_rollouts))
