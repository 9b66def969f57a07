"""`rl`: reinforcement learning with verifiable rewards over one or more domains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from engines.chat import Chat
from engines.rollout.admission import Admission
from engines.rollout.background_sampler import BackgroundSampler
from engines.rollout.bounds import StopRule
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.loop import Loop
from engines.rollout.producer import Producer
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.gallery import Gallery
from engines.rollout.records.journal import RolloutJournal
from engines.rollout.records.take_log import TakeLog
from engines.rollout.roller import Roller
from engines.rollout.tickets import TicketSource
from engines.sglang.fleet import Fleet, prewarm
from infra.run_both import run_both
from tasks.resources import context_length, lease_fleet, open_parts
from tasks.rl.record import RlRecord
from tasks.rl.roles import Roles, lease_roles
from tasks.rl.spec import RlSpec
from tasks.saving import Saving
from tasks.stage import StageContext, Stopped


async def run(spec: RlSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`
    and `takes.jsonl`.

    Raises TrainingStopped, AgreementError, EngineError, InputError; Stopped after a checkpoint.
    """
    return await train(spec, context, teachers={})


async def train(
    spec: RlSpec, context: StageContext, teachers: Mapping[str, Path]
) -> dict[str, float]:
    """The same, of which `opd` is the case with `teachers`: model folders by domain."""
    model = context.inputs["model"]
    async with AsyncExitStack() as stack:
        (roles, fleet), (chat, domains) = await run_both(
            _lease(stack, spec, context, model), open_parts(stack, model, spec.domains)
        )
        watch = StopRule(**spec.settings.bounds.model_dump())
        record = RlRecord(
            watch=watch,
            gallery=Gallery(chat),
            reporter=context.reporter,
            steps=spec.settings.steps,
            notes=context.checkpoints,
        )
        if teachers:
            await roles.trainer.load_teachers(teachers)
        policy = PublishedPolicy(roles.trainer, fleet, record.version)
        stack.push_async_callback(policy.close)
        fleet.client.on_trouble = policy.repair
        fleet.client.must_wait = lambda: policy.is_changing
        loop = _loop(spec, context, chat, domains, roles, fleet, policy)
        await _resume(context, record, loop, roles, policy)
        saving = await stack.enter_async_context(Saving(context, record.checkpointed))
        began = time.monotonic()
        await _train(spec, context, record, loop, saving, roles, fleet)
        worked = time.monotonic() - began
        await roles.export(context.out, model)
        record.write_rollouts(context.out)
        await loop.takes.export(context.out)
        return {**record.summary(), "work_seconds": worked}


async def _lease(
    stack: AsyncExitStack, spec: RlSpec, context: StageContext, model: Path
) -> tuple[Roles, Fleet]:
    """Ranks first, then servers: every stage in this order, or two could wait for each other."""
    # An owner of devices that hangs is given a time of its own before it is replaced.
    with context.pulse.waiting():
        await prewarm(context.pool.servers)
    roles = await lease_roles(stack, spec, context, model)
    return roles, await lease_fleet(stack, context, spec.settings.fleet, model)


def _loop(
    spec: RlSpec,
    context: StageContext,
    chat: Chat,
    domains: list[LiveDomain],
    roles: Roles,
    fleet: Fleet,
    policy: PublishedPolicy,
) -> Loop:
    """The parts of the stage's loop, as at its beginning."""
    settings, critic = spec.settings, spec.settings.critic_role
    wanted = settings.problems_per_step
    buffer = GroupBuffer(
        groups_per_step=wanted, max_staleness=settings.max_staleness, policy=policy
    )
    needs_spread = "spread" in settings.algorithm.needs
    producer = Producer(
        source=TicketSource(domains, split="rl", seed=spec.seed, start=spec.start),
        admission=Admission(
            groups_per_step=wanted,
            oversample=settings.oversample if needs_spread else 1.0,
            waves=1 + settings.refill_rounds,
            max_staleness=settings.max_staleness,
        ),
        roller=Roller(
            generate=fleet.client.generate,
            chat=chat,
            context_length=context_length(settings.fleet, context.inputs["model"]),
            seed=spec.seed,
        ),
        buffer=buffer,
        policy=policy,
        group_size=settings.group_size,
        temperature=settings.algorithm.temperature,
        needs_spread=needs_spread,
        journal=RolloutJournal(context.checkpoints),
    )
    consumer = Consumer(
        trainer=roles.trainer,
        policy=policy,
        algorithm=settings.algorithm,
        groups_per_step=wanted,
        critic=roles.critic,
        critic_only_steps=critic.warmup_steps if critic else 0,
    )
    sampler = BackgroundSampler(producer, buffer, policy, settings.steps, settings.on_stale)
    return Loop(producer, buffer, TakeLog(context.checkpoints), consumer, policy, sampler)


async def _resume(
    context: StageContext,
    record: RlRecord,
    loop: Loop,
    roles: Roles,
    policy: PublishedPolicy,
) -> None:
    """Continue from the newest checkpoint, if there is one: the fleet gets its weights too."""
    latest = await asyncio.to_thread(context.checkpoints.latest)
    if latest is not None:
        _, folder = latest
        record.restore(folder)
        loop.buffer.restore(folder)
        loop.sampler.restore(folder)
        await roles.load(folder)
        await policy.go_on(record.version)
    await loop.takes.recover(record.step + 1)
    takes = loop.takes.from_step(record.step + 1)
    await loop.producer.recover(loop.sampler.first_open, takes)


async def _train(
    spec: RlSpec,
    context: StageContext,
    record: RlRecord,
    loop: Loop,
    saving: Saving,
    roles: Roles,
    fleet: Fleet,
) -> None:
    """Run the loop from where the record stands to the end of the stage."""
    settings, idle_before = spec.settings, fleet.client.idle_seconds

    async def after_step(result: StepResult) -> bool:
        nonlocal idle_before
        idle, idle_before = fleet.client.idle_seconds - idle_before, fleet.client.idle_seconds
        record.observe(result, idle)
        over = record.solved or record.step == settings.steps
        stopping = context.stop.requested and not over
        if stopping or (record.step % settings.checkpoint_every == 0 and not over):
            snapshot = partial(_snapshot, record, loop, roles)
            await saving.begin(record.step, record.score, snapshot, loop.sampler.first_open)
        if stopping:
            raise Stopped(
                f"stopped after step {record.step}; the stage continues from this checkpoint"
            )
        return over

    await loop.run(
        first=record.step + 1,
        last=settings.steps,
        after_step=after_step,
        before_update=saving.wait_for_snapshot,
    )


def _snapshot(
    record: RlRecord, loop: Loop, roles: Roles, folder: Path
) -> Coroutine[Any, Any, object]:
    """Record, groups and tickets as they are now; the ranks stay as they are until the next
    update."""
    write_rollouts = record.save(folder)
    loop.buffer.save(folder)
    loop.sampler.save(folder)
    return run_both(roles.save(folder), asyncio.to_thread(write_rollouts))
