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

import re
import secrets
from collections.abc import Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from engines.agents.agent_session import AgentSession
from engines.agents.exchange import Exchange
from engines.agents.limits import GatewayLimits
from engines.agents.wire.chat_completions import ChatCompletions
from engines.agents.wire.messages import Messages
from engines.agents.wire.openapi import openapi
from engines.agents.wire.request import MODEL, Refusal
from engines.agents.wire.responses import Responses
from engines.agents.wire.wire_format import WireFormat

_COUNTED = Messages()
FORMATS: tuple[WireFormat, ...] = (ChatCompletions(), Responses(), _COUNTED)
COUNT_PATH = "/v1/messages/count_tokens"
_BY_PATH = "/sessions/{key}"
_KEY = re.compile(r"(?i:bearer) +(\S+)")


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
        """Its requests are refused from now on, and those under way given up."""
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


_JSON = {"content-type": "application/json"}


def _posted(path: str, endpoint: _Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


async def _health(_: HttpRequest) -> Response:
    return PlainTextResponse("OK")


async def _openapi(_: HttpRequest) -> Response:
    return Response(orjson.dumps(openapi(FORMATS, COUNT_PATH)), headers=_JSON)


async def _unknown_path(request: HttpRequest, error: Exception) -> Response:
    paths = ", ".join(f"POST {wire.path}" for wire in FORMATS)
    said = f"there is no {request.method} {request.url.path}; there are {paths}"
    return Response(FORMATS[0].error(Refusal(404, said, "not_found")), 404, _JSON)
