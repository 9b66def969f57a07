"""A stage's lease on servers of others, in the place of a `StageLease` on servers of ours.

find ─▶ check ─▶ hold ─▶ give weights ─▶ router of ours ─▶ watch, renew ─▶ restore ─▶ give back
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from engines.devices.child_processes import ChildProcesses
from engines.devices.waiting_time import folder_bytes
from engines.sglang.external.checks import check_server, takes_batches
from engines.sglang.external.found_server import find_servers, look_at
from engines.sglang.external.held_servers import HeldServers, forget_keys, note_keys
from engines.sglang.external.served_weights import ServedWeights
from engines.sglang.servers.router import Router
from engines.sglang.servers.server_units import ServerTerms, ServerUse
from infra.errors import EngineError, InputError, LeaseLost
from infra.home import home

_WATCH_S = 1.0
_log = logging.getLogger(__name__)


class ExternalLease:
    """Made by `take`, ended by `release`."""

    def __init__(self, held: HeldServers, terms: ServerTerms, holder: str) -> None:
        self.on_lost: Callable[[LeaseLost], None] = lambda _: None
        self._held = held
        self._children = ChildProcesses(home() / "logs" / "external" / holder)
        self._router = Router(self._children, "router")
        self._served = ServedWeights(held, terms, self._router)
        self._takes_batches = True
        self._noted = (*terms.spec.external, *held.found)
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    @property
    def use(self) -> ServerUse:
        """What the stage may use now: servers come and go."""
        return ServerUse(self._router.url, self._served.urls, self._takes_batches)

    @classmethod
    async def take(cls, terms: ServerTerms, holder: str, wait_s: float) -> Self:
        """Wait for the servers of `terms.spec.external` until they serve `terms.model`.

        Raises InputError for servers that cannot do what the stage needs, EngineError if another
        run has them for `wait_s` seconds or they refuse.
        """
        held = await asyncio.to_thread(_held, terms, wait_s)
        lease = cls(held, terms, holder)
        try:
            lease._takes_batches = await asyncio.to_thread(_checked, held, terms)
            await lease._served.give()
            await asyncio.to_thread(lease._router.wait_ready)
            await lease._served.route()
        except BaseException:
            await lease.release()
            raise
        lease._tasks = [
            asyncio.create_task(lease._repeat(_WATCH_S, lease._served.look_after)),
            asyncio.create_task(lease._repeat(held.ttl_s / 6, lease._served.renew)),
        ]
        return lease

    async def prepare(self, terms: ServerTerms, timeout_s: float) -> None:
        """Let the servers serve other terms; each has `timeout_s` seconds at most."""
        if terms.is_asleep:
            raise EngineError("servers of others do not sleep: they are not ours")
        try:
            async with asyncio.timeout(timeout_s):
                await self._served.give(terms)
                await self._served.route()
        except TimeoutError as error:
            raise EngineError(
                f"{terms.model} is not on all servers after {timeout_s:.0f} s"
            ) from error

    async def is_healthy(self) -> bool:
        """Whether there are servers, and each one works as of now; lost ones are left out."""
        await self._served.drop_lost()
        return bool(self._served.urls)

    async def release(self) -> None:
        """Leave the servers as they were found. Safe to call twice."""
        if self._over.is_set():
            return
        self._over.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._served.settle()
        await asyncio.to_thread(self._children.close)
        for trouble in await asyncio.to_thread(self._held.restore):
            _log.error("%s", trouble)
        await asyncio.to_thread(self._held.give_back)
        await asyncio.to_thread(forget_keys, self._noted)

    async def _repeat(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Until the lease is over. What is under way then is finished."""
        while not self._over.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await self._over.wait()
            except TimeoutError:
                try:
                    await work()
                except (EngineError, InputError) as error:
                    _log.warning("servers of others: %s; trying again", error)


def _held(terms: ServerTerms, wait_s: float) -> HeldServers:
    """The right to all servers that the addresses stand for."""
    note_keys(terms.spec.external)
    urls: tuple[str, ...] = ()
    try:
        urls = find_servers(terms.spec.external)
        note_keys(urls)
        for url in urls:  # before a wait that may be long
            check_server(look_at(url), terms)
        held = HeldServers(urls, folder_bytes(terms.model))
        held.hold(wait_s)
        return held
    except BaseException:
        forget_keys([*terms.spec.external, *urls])
        raise


def _checked(held: HeldServers, terms: ServerTerms) -> bool:
    """Whether all of them take batches, once their weights are what we leave them with."""
    held.check_restorable()
    batches = [takes_batches(url, terms) for url in held.found]
    return all(batches)
