"""Aborts: has servers end turns that nobody waits for any more.

A turn whose rollout was cancelled would keep its place in an engine until its last token. The
router hands no abort on and does not say which server has a request, so all of its servers are
told. Where that fails (a server could not be reached, or the request had not arrived there yet), a
turn ends when the connection of its request is closed, or by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import aiohttp
import orjson

from engines.sglang.http import read_bounded
from infra.errors import EngineError

_TELL_S = 5.0
"""what a server may take to hear of one turn"""
_AGAIN_S = 1.0
"""after which a server is told once more of a turn whose request is still open: it may have come
later than its abort"""
_CLOSE_S = 3.0
_AT_ONCE = 32
"""requests under way, of those that tell of one moment's turns"""
_log = logging.getLogger(__name__)


class Aborts:
    """The aborted turns of one client."""

    def __init__(self, router_url: str, session: Callable[[], aiohttp.ClientSession]) -> None:
        """`router_url` may also be that of a single server; the session's requests have its key."""
        self._router_url = router_url
        self._session = session
        self._under_way: set[str] = set()
        self._unwanted: set[str] = set()
        """turns of which servers are to be told next"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @contextmanager
    def watch(
        self, request: asyncio.Future[Any], turns: Mapping[str, asyncio.Future[Any]]
    ) -> Generator[None]:
        """Keep `request` under way in the block with these turns, by their ids at the engine. A
        turn whose future is cancelled is aborted, and the request ends when none is left. If it is
        not answered at the end of the block, it ends there with the turns that are left."""

        def settled(name: str, future: asyncio.Future[Any]) -> None:
            if future.cancelled():
                self._abort({name})
                if all(other.done() for other in turns.values()):
                    request.cancel()

        callbacks = {name: partial(settled, name) for name in turns}
        for name, future in turns.items():
            future.add_done_callback(callbacks[name])
        self._under_way |= turns.keys()
        try:
            yield
        finally:
            for name, future in turns.items():
                future.remove_done_callback(callbacks[name])
            self._under_way -= turns.keys()
            if not request.done():
                self._abort([name for name, future in turns.items() if not future.done()])
                request.cancel()

    async def close(self) -> None:
        """Return when servers were told of all turns so far, after seconds at most."""
        self._is_closed = True
        self._tell_unwanted()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    def _abort(self, turns: Collection[str]) -> None:
        """Tell servers together of all turns that are given up in the same moment."""
        if not self._unwanted:
            asyncio.get_running_loop().call_soon(self._tell_unwanted)
        self._unwanted |= set(turns)

    def _tell_unwanted(self) -> None:
        turns, self._unwanted = self._unwanted, set[str]()
        if turns:
            self._spawn(turns)
            asyncio.get_running_loop().call_later(_AGAIN_S, self._tell_again, turns)

    def _tell_again(self, turns: set[str]) -> None:
        left = turns & self._under_way
        if left and not self._is_closed:
            self._spawn(left)

    def _spawn(self, turns: set[str]) -> None:
        task = asyncio.create_task(self._tell(turns), name=f"abort of {len(turns)} turns")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, turns: set[str]) -> None:
        places = asyncio.Semaphore(_AT_ONCE)

        # One request a turn: SGLang takes one id, begins no others with it (its tokenizer knows
        # whole ids only), and `abort_all` would end the turns of evaluations and of others.
        async def tell(server: str, turn: str) -> None:
            async with places:
                await self._asked("POST", server, "/abort_request", {"rid": turn})

        servers = await self._servers()
        await asyncio.gather(*(tell(server, turn) for server in servers for turn in sorted(turns)))

    async def _servers(self) -> list[str]:
        """Behind the router; what is no router is the server itself."""
        try:
            workers: Any = orjson.loads(await self._asked("GET", self._router_url, "/workers"))
            return [worker["url"] for worker in workers["workers"]]
        except (ValueError, LookupError, TypeError):
            return [self._router_url]

    async def _asked(
        self, method: str, url: str, path: str, body: dict[str, str] | None = None
    ) -> bytes:
        """Return what is answered; empty if nothing is, or a refusal."""
        timeout = aiohttp.ClientTimeout(total=_TELL_S)
        try:
            async with self._session().request(
                method, url + path, json=body, timeout=timeout
            ) as response:
                return await read_bounded(response) if response.status < 400 else b""
        except (aiohttp.ClientError, EngineError, TimeoutError, OSError) as error:
            _log.debug("%s %s%s: %r", method, url, path, error)
            return b""
