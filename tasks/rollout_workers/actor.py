"""The Ray actor of a rollout worker: it opens a stage's domains and asks the stage's servers."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from engines.devices.waiting_time import ProcessAddress, address_of_this_actor
from engines.rollout.workers.worker import News, RolloutWorker, RollRequest
from engines.sglang.client import GenerationClient
from engines.sglang.roles.role_client import RoleAddress
from engines.sglang.spec import Routing
from infra.processes.leftovers import temporary_folder
from infra.user_files import UserFiles, install_hooks
from tasks.domain import Domain, ScoredDomain
from tasks.resources import open_parts
from tasks.served.served_roles import RoleClients


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker needs of its stage. It may run on a host that has none of the stage's files."""

    chat_files: Mapping[str, bytes]
    """of the model's folder"""
    domains: Sequence[Domain | ScoredDomain]
    hooks: UserFiles
    router_url: str
    max_batch: int
    """turns in one request"""
    routing: Routing
    with_experts: bool
    """servers say which experts they chose"""
    most_turns: int
    """this worker's share of those at the servers at once"""
    workers: int
    """how many there are; the bounds of a judge at an address are of all of them together"""
    context_length: int
    seed: int
    roles: Mapping[str, RoleAddress]
    """models that rewards ask, with this worker's share of their places"""
    secrets: Mapping[str, str] = field(repr=False)
    """by name, those that options of the domains refer to"""


class RolloutWorkerActor:
    """A rollout worker. Its methods are called by `RayWorker`; it ends with the job of its
    stage."""

    def __init__(self) -> None:
        self._open = AsyncExitStack()
        self._worker: RolloutWorker | None = None

    async def open(self, setup: WorkerSetup) -> ProcessAddress:
        """Raises InputError for a part that cannot be built."""
        os.environ.update(setup.secrets)
        install_hooks(setup.hooks)
        with temporary_folder() as folder:
            for name, content in setup.chat_files.items():
                (folder / name).write_bytes(content)
            roles = RoleClients(self._open, setup.domains)
            await roles.connect(setup.roles)
            chat, domains = await open_parts(
                self._open,
                folder,
                setup.domains,
                roles,
                judges_groups=False,
                sharing=setup.workers,
            )
        client = GenerationClient(
            setup.router_url,
            max_batch=setup.max_batch,
            routing=setup.routing,
            most_turns=setup.most_turns,
            with_experts=setup.with_experts,
        )
        await self._open.enter_async_context(client)
        self._worker = RolloutWorker(
            client=client,
            chat=chat,
            domains=domains,
            context_length=setup.context_length,
            seed=setup.seed,
        )
        self._open.push_async_callback(self._worker.close)
        gc.freeze()  # what is imported stays: a look at all of it would hold every rollout up
        return address_of_this_actor()

    async def roll(self, request: RollRequest) -> None:
        self._opened.roll(request)

    async def begin_round(self, number: int, round: int) -> None:
        self._opened.begin_round(number, round)

    async def cancel(self, number: int) -> None:
        self._opened.cancel(number)

    async def news(self, is_changing: bool, within_s: float) -> News:
        return await self._opened.news(is_changing, within_s)

    async def close(self) -> None:
        """End its rollouts, and the processes of the user's own parts."""
        await self._open.aclose()

    @property
    def _opened(self) -> RolloutWorker:
        assert self._worker is not None
        return self._worker
