"""What rolls a stage's problems out: its own process, or rollout workers.

A `RayWorker` is a rollout worker in a Ray actor, as the stage holds it. Ray is imported by its
functions only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

from engines.chat import Chat
from engines.chat.chat_folder import chat_files
from engines.devices.ray_cluster import connect
from engines.devices.waiting_time import ProcessAddress
from engines.rollout.roller import Roller, RollsGroups, Window
from engines.rollout.workers.worker import News, RollRequest, WorkerHandle, WorkerLost
from engines.rollout.workers.worker_pool import WorkerPool
from engines.sglang.fleet import Fleet
from engines.sglang.spec import FleetSpec
from infra.access import is_loopback
from infra.errors import InputError
from infra.processes.outages import told_by
from infra.secret_references import secrets_of
from tasks.domain import Domain, ScoredDomain
from tasks.resources import context_length
from tasks.rollout_workers.actor import RolloutWorkerActor, WorkerSetup
from tasks.served.served_roles import RoleClients
from tasks.stage import StageContext

CPU_SHARE = 0.1
"""of a core, as Ray counts it: a worker mostly waits"""

START_S = 300.0
"""what a worker may take to be placed on a host and to build its domains"""

NEWS_S = 1.0
"""how long a worker that has nothing to tell keeps the stage waiting: so old is what it knows of
the stage at most"""

SILENT_S = 120.0
"""how long a worker may not answer before it counts as lost: a driver may block its event loop"""

_END_S = 10.0

_log = logging.getLogger(__name__)


class RayWorker:
    """Made by `start`, ended by `end`, and by Ray when the stage's job ends."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._place: ProcessAddress | None = None

    @classmethod
    async def start(cls, setup: Any, router_url: str, name: str) -> Self:
        """`setup`: reference to a `WorkerSetup`; `name` is for people. Raises InputError for a part
        that cannot be built, WorkerLost."""
        worker = cls(_new_actor(router_url, name))
        try:
            worker._place = await worker._answer(worker._actor.open.remote(setup), START_S)
        except BaseException:
            worker._kill()
            raise
        _log.info("rollout worker: %s", worker._place)
        return worker

    async def roll(self, request: RollRequest) -> None:
        """Raises WorkerLost."""
        await self._answer(self._actor.roll.remote(request), SILENT_S)

    def begin_round(self, number: int, round: int) -> None:
        self._actor.begin_round.remote(number, round)

    def cancel(self, number: int) -> None:
        self._actor.cancel.remote(number)

    async def news(self, is_changing: bool) -> News:
        """Raises WorkerLost."""
        call = self._actor.news.remote(is_changing, NEWS_S)
        news: News = await self._answer(call, NEWS_S + SILENT_S)
        told_by(self, news.outages)
        return news

    async def end(self) -> None:
        with suppress(WorkerLost, InputError):
            await self._answer(self._actor.close.remote(), _END_S)
        told_by(self, ())
        self._kill()

    def _kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)

    async def _answer(self, call: Any, timeout_s: float) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await asyncio.wait_for(_result(call), timeout_s)
        except TimeoutError:
            raise WorkerLost(f"no answer within {timeout_s:g} s{self._where}") from None
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, InputError):
                raise cause from None
            raise WorkerLost(f"{type(cause).__name__}: {cause}{self._where}") from error
        except RayError as error:
            text = next(iter(str(error).strip().splitlines()), "no message")
            raise WorkerLost(f"{type(error).__name__}: {text}{self._where}") from error

    @property
    def _where(self) -> str:
        place = self._place
        return f" ({place.host}, pid {place.pid}, log {place.log or 'unknown'})" if place else ""


async def _result(call: Any) -> Any:
    return await call


def _new_actor(router_url: str, name: str) -> Any:
    """On any host that reaches the router; it is started in the background."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy: Any = "SPREAD"
    if _is_of_this_host(router_url):
        here = ray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(here, soft=False)
    actor_class: Any = ray.remote(RolloutWorkerActor)
    options = actor_class.options(
        # Of those of one name Ray wants one at a time, also of those that are ending.
        name=f"{name} {uuid4().hex[:4]}",
        num_cpus=CPU_SHARE,
        max_restarts=0,
        scheduling_strategy=strategy,
    )
    return options.remote()


def _is_of_this_host(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return is_loopback(host)
    except ValueError:  # a name
        return host == "localhost"


class Rollers:
    """What rolls out for one stage, whose fleet serves one model after another. Workers end with
    the stack."""

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
        """Return what rolls out for a model that the fleet serves; `chat` is its format. What was
        made for another model is of no use then. Raises InputError, EngineError."""
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
            with_experts=client.with_experts,
            most_turns=max(client.most_turns // workers, 1),
            workers=workers,
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
    """Return a reference, from which every worker takes it."""
    connect()
    import ray

    return ray.put(setup)


async def _start(setup: object, router_url: str, holder: str, position: int) -> WorkerHandle:
    return await RayWorker.start(setup, router_url, f"{holder} rollouts {position}")
