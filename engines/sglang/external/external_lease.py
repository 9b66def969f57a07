"""A stage's lease on servers of others, in the place of a `StageLease` on servers of ours.

find ─▶ check ─▶ hold ─▶ give weights ─▶ router of ours ─▶ watch, renew ─▶ restore ─▶ give back

A server that is lost leaves the router and `urls`. When it answers again it is held, checked and
given the folder's weights as at the beginning. The router gets it back once it serves the newest
version that another one serves, which the stage's next publish sees to.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from engines.devices.child_processes import ChildProcesses
from engines.devices.waiting_time import folder_bytes, transfer_bound_s
from engines.sglang.external.found_server import (
    check_server,
    check_shape,
    find_servers,
    look_at,
    takes_batches,
)
from engines.sglang.external.give_weights import give_weights
from engines.sglang.external.held_servers import HeldServers, forget_keys, note_keys
from engines.sglang.http import NoConnection, call
from engines.sglang.servers.router import Router
from engines.sglang.servers.server_units import HeldParts, ServerTerms, ServerUse
from engines.weight_versions import BROKEN_WEIGHTS
from infra.access import LOOPBACK, external_key, note_key
from infra.errors import EngineError, LeaseLost
from infra.home import home

_ANSWER_S = 10.0
_HUNG_S = 60.0
"""how long a server may leave a question open, apart from reading its weights"""
_RETRY_S = 15.0
_log = logging.getLogger(__name__)
_WATCH_S = 1.0
_ASK_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class _Look:
    version: str = ""
    """of its weights, as it says; empty: it did not answer"""
    is_gone: bool = False
    """nobody listens there"""

    @property
    def number(self) -> int:
        """-1 for a version that is none of ours."""
        return int(self.version) if self.version.isdecimal() else -1

    @property
    def is_restarted(self) -> bool:
        """Return whether it serves weights that came neither from us nor are on their way."""
        return bool(self.version) and self.number < 0 and self.version != BROKEN_WEIGHTS


class ServedWeights:
    """Keeps servers of others on the stage's weights. It is not for use by two event loops."""

    def __init__(self, held: HeldServers, terms: ServerTerms, router: Router) -> None:
        self._held, self._terms, self._router = held, terms, router
        self._all = tuple(held.found)
        self._up = self._all
        self._newest = 0
        """version that was seen served"""
        self._answered: dict[str, float] = {}
        """when each server answered last"""
        self._not_before: dict[str, float] = {}
        """when to look again at a lost server that could not be taken back"""
        self._changing = asyncio.Lock()
        """held by who gives weights, or changes what the router knows"""
        self._giving: set[asyncio.Task[object]] = set()

    @property
    def urls(self) -> tuple[str, ...]:
        """Servers that are not lost: they have weights of ours, not always the newest."""
        return self._up

    async def give(self, terms: ServerTerms | None = None) -> None:
        """Have every server that is not lost serve the folder of the terms, from now on these.

        Raises InputError for a model that they cannot take, EngineError if one refuses.
        """
        async with self._changing:
            for found in list(self._held.found.values()):
                check_shape(found, (terms or self._terms).model)
            self._terms = terms or self._terms
            while True:
                urls = self._up
                try:
                    await self._give(urls)
                    return
                except EngineError:
                    await self.drop_lost()
                    if self._up in (urls, ()):
                        raise

    async def look_after(self) -> None:
        """Drop lost servers, take back what answers again, tell the router; every second."""
        await self.drop_lost()
        await self.route()  # or the router would take one that comes back for one that stayed
        for url in self._all:
            is_due = time.monotonic() > self._not_before.get(url, 0.0)
            if url not in self._up and is_due and (await _look(url)).version:
                self._not_before[url] = time.monotonic() + _RETRY_S
                async with self._changing:
                    await self._take_back(url)
        await self.route()

    async def renew(self) -> None:
        """Keep the right to the servers, and drop those to which it was lost."""
        for url in await asyncio.to_thread(self._held.renew):
            _log.warning("the right to %s is lost: it was restarted, or another run has it", url)
            await self._lose(url)
        await self.route()

    async def drop_lost(self) -> None:
        """Look at every server as it is now."""
        now = time.monotonic()
        bound_s = transfer_bound_s(folder_bytes(self._terms.model), _HUNG_S)
        for url, look in (await self._look_at_all()).items():
            if look.version:
                self._answered[url] = now
            is_hung = now - self._answered.setdefault(url, now) > bound_s
            if look.is_gone or look.is_restarted or is_hung:
                _log.warning("%s is lost; going on without it", url)
                await self._lose(url)

    async def route(self) -> None:
        """Let the router know which servers serve the newest version."""
        async with self._changing:
            looks = await self._look_at_all()
            self._newest = max([self._newest, *(look.number for look in looks.values())])
            known = await asyncio.to_thread(self._router.servers)
            # One that is known and in the middle of a publish stays: clients wait for it.
            serving = {u for u, look in looks.items() if u in known or look.number >= self._newest}
            if serving != known.keys():
                await asyncio.to_thread(self._router.set_servers, serving)

    async def settle(self) -> None:
        """Return when nothing is being given any more, by whomever it was asked for."""
        await asyncio.gather(*self._giving, return_exceptions=True)

    async def _take_back(self, url: str) -> None:
        """A server that was lost and answers again, if nobody else has taken it."""
        if not await asyncio.to_thread(self._held.take_back, url):
            return
        try:
            check_server(self._held.found[url], self._terms)
            await asyncio.to_thread(takes_batches, url, self._terms)
            await self._give((url,))
        except BaseException:
            await asyncio.to_thread(self._held.drop, url)
            raise
        _log.warning("%s is back", url)
        self._not_before.pop(url, None)
        self._up = (*self._up, url)

    async def _give(self, urls: tuple[str, ...]) -> None:
        """A thread cannot be stopped: `settle` waits for it if its caller gives up."""
        work = asyncio.to_thread(give_weights, self._terms.model, urls, self._terms.version)
        task: asyncio.Task[object] = asyncio.create_task(work)
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)
        await asyncio.shield(task)

    async def _lose(self, url: str) -> None:
        self._answered.pop(url, None)
        self._up = tuple(other for other in self._up if other != url)
        await asyncio.to_thread(self._held.drop, url)

    async def _look_at_all(self) -> dict[str, _Look]:
        urls = self._up
        return dict(zip(urls, await asyncio.gather(*map(_look, urls)), strict=True))


async def _look(url: str) -> _Look:
    try:
        said = await asyncio.to_thread(call, url, "/model_info", timeout=_ANSWER_S)
        return _Look(str(said["weight_version"]))
    except NoConnection:
        return _Look(is_gone=True)
    except EngineError:
        return _Look()


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
        """Return what the stage may use now: servers come and go."""
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
        """Return whether there are servers, and each one works as of now; lost ones are left
        out."""
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
