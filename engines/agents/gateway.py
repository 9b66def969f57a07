"""Gateway: sessions over HTTP, in the wire formats that harnesses use.

    POST /v1/chat/completions            OpenAI          `Authorization: Bearer KEY`
    POST /v1/responses                   OpenAI
    POST /v1/messages                    Anthropic       `x-api-key: KEY`, or the same
    POST /v1/messages/count_tokens       Anthropic
    GET  /v1/models, /health, /openapi.json

A key names a session; so does a path, `/sessions/KEY/v1/...`, for clients that can set an address
only. An answer is the turn that the session's policy took: what a request asks for beside its
conversation and tools is recorded and not followed.
"""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import orjson
import uvicorn
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from engines.agents.agent_session import AgentSession
from engines.agents.exchange import Exchange
from engines.agents.limits import GatewayLimits
from engines.agents.wire.anthropic_messages import Messages
from engines.agents.wire.chat_completions import ChatCompletions
from engines.agents.wire.responses import Responses
from engines.agents.wire.wire_format import MODEL, Refusal, WireFormat
from infra.access import LOOPBACK
from infra.errors import EngineError
from infra.processes.http_heads import BoundedHeads

_START_S, _END_S = 30.0, 10.0
_BACKLOG = 1024
_IDLE_S = 3600
"""that a connection may be idle: an agent's tools take their time between two turns"""
_COUNTED = Messages()
FORMATS: tuple[WireFormat, ...] = (ChatCompletions(), Responses(), _COUNTED)
COUNT_PATH = "/v1/messages/count_tokens"
_BY_PATH = "/sessions/{key}"
_KEY = re.compile(r"(?i:bearer) +(\S+)")
_JSON = {"content-type": "application/json"}
_SCHEMAS = "#/components/schemas/{model}"
_ERRORS = {
    "400": "the request cannot be answered, or the session is over",
    "401": "the key names no open session",
    "413": "the request is too large",
    "429": "too many requests of the session at the same time",
    "503": "the engine does not answer",
}


class GatewayServer:
    """Listens on a port of the loopback interface. `start` it and `close` it in one event loop."""

    def __init__(self, gateway: Gateway) -> None:
        # Where the protocol is named, asyncio lets small pieces go out at once. Otherwise an
        # answer's body waits until the client acknowledges its head, for 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((LOOPBACK, 0))
        config = uvicorn.Config(
            gateway.app, log_config=None, log_level="critical", access_log=False, lifespan="off",
            ws="none", timeout_keep_alive=_IDLE_S, timeout_graceful_shutdown=1,
            server_header=False, proxy_headers=False, backlog=_BACKLOG, http=BoundedHeads,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`host:port`"""
        return f"{LOOPBACK}:{self._socket.getsockname()[1]}"

    async def start(self) -> None:
        """Raises EngineError if it does not listen in time."""
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        deadline = asyncio.get_running_loop().time() + _START_S
        while not self._server.started:
            late = asyncio.get_running_loop().time() > deadline
            if late or self._serving.done():
                raise EngineError(f"the agents' gateway does not listen on {self.address}")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """End it, with the requests that it is about; doing it twice is harmless."""
        self._server.should_exit = True
        if self._serving is not None:
            done, _ = await asyncio.wait({self._serving}, timeout=_END_S)
            if not done:
                self._serving.cancel()
                await asyncio.wait({self._serving})
            self._serving = None


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: they are the stage's."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Gateway:
    """An ASGI application. One event loop uses it and its sessions."""

    def __init__(self, limits: GatewayLimits | None = None) -> None:
        self.limits = limits or GatewayLimits()
        self._sessions: dict[str, AgentSession] = {}
        routes: list[BaseRoute] = []
        for prefix in ("", _BY_PATH):
            for wire in FORMATS:
                routes.append(_posted(prefix + wire.path, self._endpoint(wire)))
            routes.append(_posted(prefix + COUNT_PATH, self._endpoint(_COUNTED, counts=True)))
            routes.append(Route(f"{prefix}/v1/models", self._models))
        routes += [Route("/health", _health), Route("/openapi.json", _openapi)]
        handlers = {404: _unknown_path, 405: _unknown_path}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def open(self, session: AgentSession) -> str:
        """The key of a session, to which requests with it go from now on. Raises Refusal."""
        if len(self._sessions) >= self.limits.sessions:
            raise Refusal(503, f"{self.limits.sessions} sessions are open, and no more may be")
        key = f"tr-{secrets.token_urlsafe(24)}"
        self._sessions[key] = session
        return key

    async def close(self, key: str) -> None:
        """Refuse the session's requests from now on, and give up those under way."""
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    @property
    def is_idle(self) -> bool:
        return not self._sessions

    def _endpoint(self, wire: WireFormat, *, counts: bool = False) -> _Endpoint:
        async def answer(request: HttpRequest, send: Send) -> None:
            exchange = Exchange(self._session_of, self.limits, wire, request, send)
            await (exchange.count() if counts else exchange.run())

        return _Endpoint(answer)

    def _session_of(self, request: HttpRequest) -> AgentSession:
        """Raises Refusal for a request without the key of an open session."""
        given = request.headers.get("authorization", "")
        bearer = _KEY.fullmatch(given)
        keys = (
            request.path_params.get("key", ""),
            bearer[1] if bearer else "",
            request.headers.get("x-api-key", ""),
        )
        for key in keys:
            if key in self._sessions:
                return self._sessions[key]
        raise Refusal(
            401,
            "this key names no open session; give it as `Authorization: Bearer KEY` or"
            " `x-api-key: KEY`",
            "invalid_api_key",
        )

    async def _models(self, request: HttpRequest) -> Response:
        try:
            self._session_of(request)
        except Refusal as refusal:
            return Response(FORMATS[0].error(refusal), refusal.status, _JSON)
        model = {"id": MODEL, "object": "model", "owned_by": "tributary", "created": 0}
        return Response(orjson.dumps({"object": "list", "data": [model]}), headers=_JSON)


class _Endpoint:
    """It sends its answer itself, and hears when the client leaves: Starlette only finds it."""

    def __init__(self, answer: Callable[[HttpRequest, Send], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(HttpRequest(scope, receive), send)


def _posted(path: str, endpoint: _Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _health(_: HttpRequest) -> Response:
    return PlainTextResponse("OK")


async def _openapi(_: HttpRequest) -> Response:
    return Response(_openapi_text(), headers=_JSON)


@functools.cache
def _openapi_text() -> bytes:
    """Made once: whoever asks for it needs no key, and making it keeps the event loop for long."""
    return orjson.dumps(openapi(FORMATS, COUNT_PATH))


async def _unknown_path(request: HttpRequest, error: Exception) -> Response:
    paths = ", ".join(f"POST {wire.path}" for wire in FORMATS)
    said = f"there is no {request.method} {request.url.path}; there are {paths}"
    return Response(FORMATS[0].error(Refusal(404, said, "not_found")), 404, _JSON)


class _Shared:
    """A gateway that several use."""

    def __init__(self) -> None:
        self.gateway = Gateway()
        self.server = GatewayServer(self.gateway)
        self.users = 0
        self.started = asyncio.Lock()
        self.is_started = False


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def shared_gateway() -> AsyncGenerator[tuple[Gateway, str]]:
    """The gateway of this event loop and its `host:port`. The first user starts it, and the last
    one ends it. Raises EngineError if it does not listen."""
    loop = asyncio.get_running_loop()
    shared = _SHARED.get(loop)
    if shared is None:
        shared = _SHARED[loop] = _Shared()
    shared.users += 1
    try:
        async with shared.started:
            if not shared.is_started:
                await shared.server.start()
                shared.is_started = True
        yield shared.gateway, shared.server.address
    finally:
        shared.users -= 1
        if not shared.users:
            del _SHARED[loop]
            await shared.server.close()


def openapi(formats: Sequence[WireFormat], count_path: str) -> dict[str, Any]:
    """OpenAPI 3.1. `count_path` takes the body of the last format."""
    _, found = models_json_schema(
        [(wire.body, "validation") for wire in formats], ref_template=_SCHEMAS
    )
    said = {wire.path: _post(wire, _answer()) for wire in formats}
    counted = {"type": "object", "properties": {"input_tokens": {"type": "integer"}}}
    said[count_path] = _post(formats[-1], {"application/json": {"schema": counted}})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tributary's gateway for agents", "version": "1"},
        "paths": said,
        "components": {
            "schemas": found["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _answer() -> dict[str, Any]:
    return {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": {"type": "string"}},
    }


def _post(wire: WireFormat, content: dict[str, Any]) -> dict[str, Any]:
    body = {"schema": {"$ref": _SCHEMAS.format(model=wire.body.__name__)}}
    errors = {status: {"description": text} for status, text in _ERRORS.items()}
    answers = {"200": {"description": "the policy's turn", "content": content}, **errors}
    asked = {"required": True, "content": {"application/json": body}}
    return {"post": {"requestBody": asked, "responses": answers}}
