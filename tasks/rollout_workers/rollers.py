"""What rolls a stage's problems out: its own process, or rollout workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from engines.chat import Chat
from engines.chat.folder import chat_files
from engines.devices.cluster import connect
from engines.rollout.roller import Roller
from engines.rollout.rolls_groups import RollsGroups
from engines.rollout.window import Window
from engines.rollout.workers.messages import WorkerHandle
from engines.rollout.workers.worker_pool import WorkerPool
from engines.sglang.fleet import Fleet
from engines.sglang.spec import FleetSpec
from infra.secret_references import secrets_of
from tasks.domain import Domain, ScoredDomain
from tasks.resources import context_length
from tasks.rollout_workers.actor import WorkerSetup
from tasks.rollout_workers.ray_worker import RayWorker
from tasks.served.roles import RoleClients
from tasks.stage import StageContext


class Rollers:
    """Of one stage, whose fleet serves one model after another. Workers end with the stack."""

    def __init__(
        self,
        stack: AsyncExitStack,
        context: StageContext,
        fleet: Fleet,
        spec: FleetSpec,
        domains: Sequence[Domain | ScoredDomain],
        roles: RoleClients,
        seed: int,
    ) -> None:
        """`seed`: the stage's."""
        self._context = context
        self._fleet, self._spec = fleet, spec
        self._domains, self._roles, self._seed = domains, roles, seed
        self._pool: WorkerPool | None = None
        self._setup: WorkerSetup | None = None
        """of the workers that run"""
        stack.push_async_callback(self._close)

    async def of(self, model: Path, chat: Chat) -> RollsGroups:
        """For a model that the fleet serves; `chat` is its format. What was made for another model
        is of no use then. Raises InputError, EngineError."""
        length = context_length(self._spec, model)
        if not self._context.resources.rollout_workers:
            return Roller(
                generate=self._fleet.client.generate,
                chat=chat,
                context_length=length,
                seed=self._seed,
                window=Window(self._fleet.client.most_turns),
            )
        client, workers = self._fleet.client, self._context.resources.rollout_workers
        setup = WorkerSetup(
            chat_files=chat_files(model),
            domains=self._domains,
            hooks=self._context.hooks,
            router_url=self._fleet.router_url,
            max_batch=client.max_batch,
            routing=client.routing,
            most_turns=max(client.most_turns // workers, 1),
            context_length=length,
            seed=self._seed,
            secrets=secrets_of([domain.model_dump(mode="json") for domain in self._domains]),
            roles={name: at.shared_by(workers) for name, at in self._roles.addresses.items()},
        )
        if self._pool is None or setup != self._setup:
            await self._close()
            self._pool, self._setup = await self._opened(setup, chat), setup
        return self._pool

    async def _opened(self, setup: WorkerSetup, chat: Chat) -> WorkerPool:
        shared = await asyncio.to_thread(_shared, setup)
        start = partial(_start, shared, setup.router_url, self._context.holder)
        count = self._context.resources.rollout_workers
        client = self._fleet.client
        window = Window(client.most_turns)
        pool = WorkerPool(start, count, servers=client, chat=chat, window=window)
        try:
            with self._context.pulse.waiting():
                await pool.open()
        except BaseException:
            await pool.close()
            raise
        return pool

    async def _close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None


def _shared(setup: WorkerSetup) -> object:
    """A reference, from which every worker takes it."""
    connect()
    import ray

    return ray.put(setup)


async def _start(setup: object, router_url: str, holder: str, position: int) -> WorkerHandle:
    return await RayWorker.start(setup, router_url, f"{holder} rollouts {position}")
