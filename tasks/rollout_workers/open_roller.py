"""What rolls a stage's problems out: its own process, or rollout workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from engines.chat import Chat
from engines.chat.folder import chat_files
from engines.devices.cluster import connect
from engines.rollout.roller import Roller
from engines.rollout.rolls_groups import RollsGroups
from engines.rollout.workers.messages import WorkerHandle
from engines.rollout.workers.worker_pool import WorkerPool
from engines.sglang.fleet import Fleet
from tasks.resources import context_length
from tasks.rl.spec import RlSpec
from tasks.rollout_workers.actor import WorkerSetup
from tasks.rollout_workers.ray_worker import RayWorker
from tasks.stage import StageContext


async def open_roller(
    stack: AsyncExitStack, spec: RlSpec, context: StageContext, fleet: Fleet, chat: Chat
) -> RollsGroups:
    """Workers end with the stack. Raises InputError, EngineError."""
    model = context.inputs["model"]
    length = context_length(spec.settings.fleet, model)
    if not context.resources.rollout_workers:
        return Roller(
            generate=fleet.client.generate, chat=chat, context_length=length, seed=spec.seed
        )
    setup = WorkerSetup(
        chat_files=chat_files(model),
        domains=spec.domains,
        hooks=context.hooks,
        router_url=fleet.router_url,
        max_batch=fleet.client.max_batch,
        context_length=length,
        seed=spec.seed,
    )
    shared = await asyncio.to_thread(_shared, setup)
    start = partial(_start, shared, fleet.router_url, context.holder)
    pool = WorkerPool(start, context.resources.rollout_workers, servers=fleet.client, chat=chat)
    stack.push_async_callback(pool.close)
    with context.pulse.waiting():
        await pool.open()
    return pool


def _shared(setup: WorkerSetup) -> object:
    """A reference, from which every worker takes it."""
    connect()
    import ray

    return ray.put(setup)


async def _start(setup: object, router_url: str, holder: str, position: int) -> WorkerHandle:
    return await RayWorker.start(setup, router_url, f"{holder} rollouts {position}")
