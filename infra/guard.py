"""An ASGI app behind this home's key: Prefect's and MLflow's servers.

Let through is who sends the key, and a browser that has logged in. A browser's request is also
refused if it came by a name that is not this machine's (a site may point a name of its own here),
or if a page of another origin sent it and it could change something.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from infra.access import USER, basic_token, is_loopback
from infra.errors import InputError
from infra.logins import PATH, has_cookie, new_cookies, take_code

RAY_PAGE = "/ray-dashboard"
"""a path after a code that leads to Ray's own page"""
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_CLOSED = {"type": "websocket.close", "code": 1008}
_HELP = "this server asks for a key: open the link that `tributary status` prints\n"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """`health` are paths that everybody may read; they tell no more than that the app is up."""

    def __init__(
        self, app: Asgi, key: str, host: str, health: tuple[str, ...], ray_port: int = 0
    ) -> None:
        """`host`: where it listens. `ray_port`: of Ray's dashboard, if logins may lead there."""
        if not key:
            raise InputError("no server starts without a key: run `tributary up`")
        self._app, self._key, self._health, self._ray_port = app, key, health, ray_port
        self._expected = (f"Basic {basic_token(key)}", f"Bearer {key}")
        self._is_local = is_loopback(host)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_read(scope, self._health):
            return await self._app(scope, receive, send)
        headers = _headers(scope)
        has_key = self._has_key(headers.get("authorization", ""))
        refusal = self._refusal(scope, headers, has_key)
        if scope["type"] != "http":
            return await self._talk(scope, headers, refusal, receive, send)
        if refusal is not None and refusal != HTTPStatus.UNAUTHORIZED:
            return await _answer(send, refusal, f"{refusal.phrase}: another site sent this\n")
        if scope["method"] == "GET" and scope["path"].startswith(PATH):
            return await self._log_in(scope, headers, refusal is None, send)
        if refusal is not None:
            challenge = ("www-authenticate", 'Basic realm="Tributary"')
            return await _answer(send, refusal, _HELP, challenge)
        return await self._app(scope, receive, send)

    def _has_key(self, given: str) -> bool:
        return any(hmac.compare_digest(given.encode(), one.encode()) for one in self._expected)

    def _refusal(
        self, scope: Message, headers: Mapping[str, str], has_key: bool
    ) -> HTTPStatus | None:
        named = headers.get("host", "")
        # Beyond loopback a proxy or a service may have a name of its own; no foreign site that
        # borrows an address can make a browser send the key.
        if not (_is_own_name(named) or (has_key and not self._is_local)):
            return HTTPStatus.FORBIDDEN
        may_change = scope["type"] != "http" or scope["method"] not in _HARMLESS
        if may_change and _is_foreign(headers, named):
            return HTTPStatus.FORBIDDEN
        if has_key or has_cookie(headers.get("cookie", ""), self._key):
            return None
        return HTTPStatus.UNAUTHORIZED

    async def _log_in(
        self, scope: Message, headers: Mapping[str, str], is_known: bool, send: Send
    ) -> None:
        code, _, rest = scope["path"].removeprefix(PATH).partition("/")
        if not (is_known or take_code(code)):
            told = "this link was used, or is too old: `tributary status` prints a new one\n"
            return await _answer(send, HTTPStatus.UNAUTHORIZED, told)
        # A browser keeps the part behind `#` by itself. Never `//`: that names another host.
        page = "/" + quote(rest.lstrip("/"), safe="/")
        if query := scope.get("query_string", b"").decode("latin-1"):
            page += f"?{query}"
        more = [("set-cookie", cookie) for cookie in new_cookies(self._key)]
        if self._ray_port and page == RAY_PAGE:
            page = f"http://{_host(headers['host'])}:{self._ray_port}/"
        more += [("location", page), ("cache-control", "no-store")]
        return await _answer(send, HTTPStatus.SEE_OTHER, "", *more)

    async def _talk(
        self,
        scope: Message,
        headers: Mapping[str, str],
        refusal: HTTPStatus | None,
        receive: Receive,
        send: Send,
    ) -> None:
        """A websocket. Some of Prefect's clients say the key in their first message only."""
        if refusal is None:
            await self._app(scope, receive, send)
        elif refusal == HTTPStatus.UNAUTHORIZED and "prefect" in scope.get("subprotocols", ()):
            await self._app(scope, _KeyFirst(receive, self._key), send)
        else:
            await send(_CLOSED)


class _KeyFirst:
    """Messages of a websocket, none of which the app sees unless the first one says the key."""

    def __init__(self, receive: Receive, key: str) -> None:
        self._receive, self._token, self._is_known = receive, f"{USER}:{key}", False

    async def __call__(self) -> Message:
        message = await self._receive()
        if self._is_known or message["type"] != "websocket.receive":
            return message
        if not self._says_key(message.get("text") or ""):
            return {"type": "websocket.disconnect", "code": 1008}
        self._is_known = True
        return message

    def _says_key(self, text: str) -> bool:
        try:
            said = json.loads(text)
        except ValueError:
            return False
        token = said.get("token") if isinstance(said, dict) else None
        return isinstance(token, str) and hmac.compare_digest(
            token.encode(errors="replace"), self._token.encode()
        )


def _is_read(scope: Message, paths: tuple[str, ...]) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in paths


def _headers(scope: Message) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _is_foreign(headers: Mapping[str, str], named: str) -> bool:
    """Whether a page of another origin sent it. Programs send neither header."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != named:
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _is_own_name(named: str) -> bool:
    """An address cannot be somebody's name for it; `localhost` is this machine by definition."""
    host = _host(named)
    if host == "localhost" or host.endswith(".localhost") or host == socket.gethostname().lower():
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _host(named: str) -> str:
    """Without the port. Example: "[::1]:80" -> "[::1]" """
    try:
        found = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return ""
    return f"[{found}]" if ":" in found else found


async def _answer(send: Send, status: HTTPStatus, text: str, *more: tuple[str, str]) -> None:
    body = text.encode()
    headers = [("content-type", "text/plain"), ("content-length", str(len(body))), *more]
    coded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": int(status), "headers": coded})
    await send({"type": "http.response.body", "body": body})
