"""A stage's lease on servers of others, in the place of a `StageLease` on servers of ours.

find ─▶ check ─▶ hold ─▶ give weights ─▶ router of ours ─▶ watch, renew ─▶ restore ─▶ give back
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from engines.devices.child_processes import ChildProcesses
from engines.devices.waiting_time import folder_bytes
from engines.sglang.external.found_server import find_servers, look_at
from engines.sglang.external.held_servers import HeldServers, forget_keys, note_keys
from engines.sglang.external.served_weights import ServedWeights
from engines.sglang.external.server_checks import check_server, takes_batches
from engines.sglang.servers.router import Router
from engines.sglang.servers.server_units import HeldParts, ServerTerms, ServerUse
from infra.access import LOOPBACK, external_key, note_key
from infra.errors import EngineError, LeaseLost
from infra.home import home

_WATCH_S = 1.0
_ASK_AGAIN_S = 2.0
_log = logging.getLogger(__name__)


class ExternalLease:
    """Made by `take`, ended by `release`."""

    def __init__(
        self, held: HeldServers, terms: ServerTerms, children: ChildProcesses, router: Router
    ) -> None:
        self.on_lost: Callable[[LeaseLost], None] = lambda _: None
        """never called: servers are lost one by one"""
        self._held, self._children, self._router = held, children, router
        self._served = ServedWeights(held, terms, router)
        self._takes_batches = True
        self._noted = (*terms.spec.external, *held.found, router.url)
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
        held = await _hold(terms, wait_s)
        children = ChildProcesses(home() / "logs" / "external" / holder)
        try:
            # It hands on to the servers what it got: their own key, or one that means nothing.
            key = external_key() or secrets.token_urlsafe(32)
            router = await asyncio.to_thread(Router, children, "router", LOOPBACK, key=key)
            note_key(router.url, key)
        except BaseException:
            await asyncio.to_thread(children.close)
            await asyncio.to_thread(held.give_back)
            raise
        lease = cls(held, terms, children, router)
        try:
            await lease._begin(terms)
        except BaseException:
            await lease.release()
            raise
        return lease

    async def prepare(self, terms: ServerTerms | HeldParts, timeout_s: float) -> None:
        """Let the servers serve other terms. Raises EngineError if that takes too long."""
        if isinstance(terms, HeldParts):
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

    async def _begin(self, terms: ServerTerms) -> None:
        self._takes_batches = await asyncio.to_thread(_all_take_batches, self._held, terms)
        await self._served.give()
        await asyncio.to_thread(self._router.wait_ready)
        await self._served.route()
        self._tasks = [
            asyncio.create_task(self._repeat(_WATCH_S, self._served.look_after)),
            asyncio.create_task(self._repeat(self._held.ttl_s / 6, self._served.renew)),
        ]

    async def _repeat(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Until the lease is over. What is under way then is finished."""
        while not self._over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._over.wait()
                return
            try:
                await work()
            except Exception as error:
                _log.warning("a check of servers of others failed; it will be repeated: %s", error)


async def _hold(terms: ServerTerms, wait_s: float) -> HeldServers:
    """The right to all servers that the addresses stand for."""
    noted = list(terms.spec.external)
    try:
        note_keys(noted)
        urls = await asyncio.to_thread(find_servers, terms.spec.external)
        noted += urls
        note_keys(noted)
        await asyncio.to_thread(_check, urls, terms)  # before a wait that may be long
        held = HeldServers(urls, folder_bytes(terms.model))
        deadline = time.monotonic() + wait_s
        while in_use := await asyncio.to_thread(held.hold):
            if time.monotonic() > deadline:
                raise held.in_use(in_use)
            await asyncio.sleep(_ASK_AGAIN_S)
        return held
    except BaseException:
        forget_keys(noted)
        raise


def _check(urls: tuple[str, ...], terms: ServerTerms) -> None:
    for url in urls:
        check_server(look_at(url), terms)


def _all_take_batches(held: HeldServers, terms: ServerTerms) -> bool:
    held.check_restorable()
    batches = [takes_batches(url, terms) for url in held.found]
    return all(batches)
