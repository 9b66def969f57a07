"""One address for several models: a request goes to the router of the model that it names.

sglang-router can do this itself only where it may download a vocabulary when it starts. With one
model there is no gateway: clients talk to its router.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from engines.sglang.http import connections
from engines.sglang.turn_queue import LANE_HEADER
from infra.access import bearer_of
from infra.errors import EngineError

_START_S, _END_S = 30.0, 10.0
_CONNECT_S = 30.0
_SILENT_S = 3600.0
"""how long a model may take for the next piece of an answer"""
_MOST_BYTES = 64 << 20
_PATHS = ("/v1/chat/completions", "/v1/completions")


class Gateway:
    """A running gateway, in a thread of this process; `close` ends it."""

    def __init__(self, host: str, port: int, key: str, routers: Mapping[str, str]) -> None:
        """`routers`: addresses by model. Raises EngineError if it does not listen in time."""
        self._key, self._routers = f"Bearer {key}", dict(routers)
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._listen(host, port), self._loop)
        try:
            started.result(_START_S)
        except OSError as error:
            self.close()
            raise EngineError(f"nothing can listen on {host}:{port}: {error}") from error

    def close(self) -> None:
        """End it, with the requests that it is about; doing it twice is harmless."""
        if self._thread.is_alive():
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_END_S)
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_END_S)
            self._loop.close()

    async def _listen(self, host: str, port: int) -> None:
        self._session = connections(_CONNECT_S, _SILENT_S)
        app = web.Application(client_max_size=_MOST_BYTES)
        for path in _PATHS:
            app.router.add_post(path, self._forward)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        # A client that leaves takes its request along: nobody generates for it any more.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def _end(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _models(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        listed = [{"id": n, "object": "model", "owned_by": "tributary"} for n in self._routers]
        return web.json_response({"object": "list", "data": listed})

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        body = await request.read()
        try:
            model: Any = orjson.loads(body)["model"]
        except (ValueError, KeyError, TypeError):
            return _error(400, "the body must be a JSON object with `model`", "invalid_request")
        if not isinstance(model, str) or model not in self._routers:
            known = ", ".join(self._routers)
            return _error(404, f"no model {model!r}; there are {known}", "model_not_found")
        return await self._answer(request, self._routers[model], body)

    async def _answer(self, request: web.Request, router: str, body: bytes) -> web.StreamResponse:
        """Return what the router answers, piece by piece as it comes."""
        assert self._session is not None
        headers = bearer_of(router)
        if lane := request.headers.get(LANE_HEADER):
            headers[LANE_HEADER] = lane
        answer = web.StreamResponse()
        try:
            url = router + request.path
            async with self._session.post(url, data=body, headers=headers) as found:
                answer.set_status(found.status)
                answer.content_type = found.content_type
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
        except (aiohttp.ClientError, EngineError) as error:
            if not answer.prepared:
                return _error(502, f"the model's router does not answer: {error}", "unavailable")
            # A part of the answer is sent: that the rest is missing shows in a broken connection.
            if request.transport is not None:
                request.transport.abort()
            return answer

    def _refusal(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(errors="replace"), self._key.encode()):
            return None
        return _error(401, "give the key as `Authorization: Bearer KEY`", "invalid_api_key")


def _error(status: int, message: str, code: str) -> web.Response:
    """Return it as OpenAI's API says it."""
    told = {"message": message, "type": "invalid_request_error", "code": code}
    return web.json_response({"error": told}, status=status)
