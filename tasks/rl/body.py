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
from engines.rollout.bounds import StopRule
from engines.rollout.buffer import RolloutBuffer
from engines.rollout.consumer import Consumer, StepResult
from engines.rollout.live_domain import LiveDomain
from engines.rollout.loop import train_loop
from engines.rollout.producer import Producer
from engines.rollout.published_policy import PublishedPolicy
from engines.rollout.records.gallery import Gallery
from engines.rollout.records.journal import RolloutJournal
from engines.rollout.roller import Roller
from engines.rollout.source import ProblemSource
from engines.sglang.fleet import Fleet, prewarm
from infra.run_both import run_both
from tasks.resources import context_length, lease_fleet, open_parts
from tasks.rl.record import RlRecord
from tasks.rl.roles import Roles, lease_roles
from tasks.rl.spec import RlSpec
from tasks.saving import Saving
from tasks.stage import StageContext, Stopped


async def run(spec: RlSpec, context: StageContext) -> dict[str, float]:
    """Train `inputs["model"]`; `context.out` becomes an HF folder with `rollouts.parquet`.

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
        )
        if teachers:
            await roles.trainer.load_teachers(teachers)
        buffer = RolloutBuffer(max_staleness=spec.settings.max_staleness)
        served = PublishedPolicy(roles.trainer, fleet, record.version)
        stack.push_async_callback(served.close)
        fleet.client.on_trouble = served.repair
        await _resume(context, record, buffer, roles, served)
        saving = await stack.enter_async_context(Saving(context, record.checkpointed))
        began = time.monotonic()
        await _train(
            spec,
            context,
            record,
            buffer,
            saving,
            _producer(spec, context, chat, domains, fleet),
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
    # An owner of devices that hangs is given a time of its own before it is replaced.
    with context.pulse.waiting():
        await prewarm(context.pool.servers)
    roles = await lease_roles(stack, spec, context, model)
    return roles, await lease_fleet(stack, context, spec.settings.fleet, model)


def _producer(
    spec: RlSpec,
    context: StageContext,
    chat: Chat,
    domains: list[LiveDomain],
    fleet: Fleet,
) -> Producer:
    settings = spec.settings
    needs_spread = "spread" in settings.algorithm.needs
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
    served: PublishedPolicy,
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
    served: PublishedPolicy,
) -> None:
    """Run the loop from where the record stands to the end of the stage."""
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
        await served.wait_repaired()
        await saving.wait_for_snapshot()

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
    return run_both(roles.save(folder), asyncio.to_thread(write_rollouts))
