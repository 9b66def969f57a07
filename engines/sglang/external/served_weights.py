"""Which servers of others serve what, while a stage leases them.

A server that is lost leaves the router and `urls`. When it answers again it is held, checked and
given the folder's weights as at the beginning. The router gets it back once it serves the newest
version that another one serves, which the stage's next publish sees to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from engines.devices.waiting_time import folder_bytes, transfer_bound_s
from engines.sglang.external.give_weights import give_weights
from engines.sglang.external.held_servers import HeldServers
from engines.sglang.external.server_checks import check_server, check_shape, takes_batches
from engines.sglang.http import NoConnection, call
from engines.sglang.servers.router import Router
from engines.sglang.servers.server_units import ServerTerms
from engines.weight_versions import BROKEN_WEIGHTS
from infra.errors import EngineError

_ANSWER_S = 10.0
_HUNG_S = 60.0
"""how long a server may leave a question open, apart from reading its weights"""
_RETRY_S = 15.0
_log = logging.getLogger(__name__)


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
        """Whether it serves weights that came neither from us nor are on their way."""
        return bool(self.version) and self.number < 0 and self.version != BROKEN_WEIGHTS


class ServedWeights:
    """Not for use by two event loops."""

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
        now, bound_s = time.monotonic(), self._hung_s()
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

    def _hung_s(self) -> float:
        return transfer_bound_s(folder_bytes(self._terms.model), _HUNG_S)


async def _look(url: str) -> _Look:
    try:
        said = await asyncio.to_thread(call, url, "/model_info", timeout=_ANSWER_S)
        return _Look(str(said["weight_version"]))
    except NoConnection:
        return _Look(is_gone=True)
    except EngineError:
        return _Look()
