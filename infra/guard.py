"""An ASGI app behind this home's key: Prefect's and MLflow's servers.

Let through is who sends the key, and a browser that has logged in. A browser's request is also
refused if it came by a name that is not this machine's (a site may point a name of its own here),
or if a page of another origin sent it; such a page may only link here.

Logging in: `tributary up` and `tributary status` print links with a code that works once. The page
that is opened with it takes the code back and gives the browser a cookie, which every page of this
home accepts. A browser sends cookies to all ports of a host, so a server of somebody else on this
machine may see ours. It is worth nothing there: it is not the key, it counts only from the address
that logged in, and on this machine only from connections of the user whose servers these are. The
kernel notes for each socket which user made it; a client of a server asks this as well before it
sends the key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from infra.access import USER, basic_token, is_loopback
from infra.errors import InputError
from infra.home import home, home_tag
from infra.processes.network import is_free

_RULES = (
    b"content-security-policy",
    b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'",
)
"""for browsers: our pages ask no other host for anything, whatever stands in them, and no page of
another origin shows them in a frame, where a person may be led to click"""
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_CLOSED = {"type": "websocket.close", "code": 1008}
_HELP = "this server asks for a key: open the link that `tributary status` prints\n"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
PATH = "/login/"
"""in front of a code, then comes the page's own path"""
LINK_SECONDS = 12 * 3600.0
"""how long a link that nobody opened works"""
_MOST_LINKS = 200
"""the oldest ones end before: whoever asks for the status each second makes many"""
COOKIE_SECONDS = 30 * 24 * 3600
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LISTENS = "01", "0A"
"""of a connection that its maker closed, the kernel no longer says the user"""
_MAPPED = "0" * 16 + "FFFF0000"
"""in front of an IPv4 address in the table of IPv6, in the order in which this machine writes it"""
_ROOT = 0


class Guard:
    """`health` are paths that everybody may read; they tell no more than that the app is up."""

    def __init__(self, app: Asgi, key: str, host: str, health: tuple[str, ...]) -> None:
        """`host`: where it listens."""
        if not key:
            raise InputError("no server starts without a key: run `tributary up`")
        self._app, self._key, self._health = app, key, health
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
        return await self._app(scope, receive, _by_rules(send))

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
        if _is_foreign(headers, named) and (may_change or not _is_link(headers)):
            return HTTPStatus.FORBIDDEN
        if has_key or self._has_session(scope, headers.get("cookie", "")):
            return None
        return HTTPStatus.UNAUTHORIZED

    def _has_session(self, scope: Message, cookies: str) -> bool:
        client, server = scope["client"], scope["server"]
        return has_cookie(cookies, self._key, client[0]) and may_be_our_user(client, server)

    async def _log_in(
        self, scope: Message, headers: Mapping[str, str], is_known: bool, send: Send
    ) -> None:
        code, _, rest = scope["path"].removeprefix(PATH).partition("/")
        if not (is_known or take_code(code)):
            told = (
                "this link was used, or is too old: `tributary status` prints a new one; for a page"
                " that a command of yours serves (`--serve`, `label`), give the command again\n"
            )
            return await _answer(send, HTTPStatus.UNAUTHORIZED, told)
        # A browser keeps the part behind `#` by itself. Never `//`: that names another host.
        page = "/" + quote(rest.lstrip("/"), safe="/")
        if query := scope.get("query_string", b"").decode("latin-1"):
            page += f"?{query}"
        cookie = new_cookie(self._key, scope["client"][0])
        more = [("set-cookie", cookie), ("cache-control", "no-store")]
        if _is_foreign(headers, headers["host"]):
            # A browser takes the new cookie along to the page only if a page of ours leads there.
            return await _answer(send, HTTPStatus.OK, _way_on(page), *more, kind="text/html")
        return await _answer(send, HTTPStatus.SEE_OTHER, "", *more, ("location", page))

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
    """Return whether a page of another origin sent it. Programs send neither header."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != named:
        return True
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _is_link(headers: Mapping[str, str]) -> bool:
    """Return whether a person followed a link: the answer becomes a page of its own, which the page
    with the link cannot read."""
    asked = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return asked == ("navigate", "document")


def _way_on(page: str) -> str:
    """Return a page that goes on to another one of ours at once, with what stands behind `#`."""
    target = json.dumps(page).replace("<", "\\u003c")
    return f"<!doctype html><script>location.replace({target} + location.hash)</script>\n"


def _by_rules(send: Send) -> Send:
    """Answers that a browser shows by our rules."""

    async def send_by_rules(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _RULES]}
        await send(message)

    return send_by_rules


def _is_own_name(named: str) -> bool:
    """An address cannot be somebody's name for it; `localhost` is this machine by
    definition.
    """
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


async def _answer(
    send: Send, status: HTTPStatus, text: str, *more: tuple[str, str], kind: str = "text/plain"
) -> None:
    body = text.encode()
    headers = [("content-type", kind), ("content-length", str(len(body))), *more]
    coded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": int(status), "headers": coded})
    await send({"type": "http.response.body", "body": body})


def login_link(url: str) -> str:
    """The page at `url`, for a browser that does not know the key: once, and for twelve hours."""
    folder = home() / "logins"
    folder.mkdir(mode=0o700, exist_ok=True)
    _forget_old(folder)
    code = secrets.token_urlsafe(24)
    (folder / _digest(code)).touch(mode=0o600)
    parts = urlsplit(url)
    return parts._replace(path=f"{PATH}{code}{parts.path or '/'}").geturl()


def _forget_old(folder: Path) -> None:
    """Names of files say nothing of their age, and another command may remove them, too."""
    ages: dict[Path, float] = {}
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            ages[file] = time.time() - file.stat().st_mtime
    newest = sorted(ages, key=lambda file: ages[file])
    for file in newest:
        if ages[file] > LINK_SECONDS or file in newest[_MOST_LINKS:]:
            file.unlink(missing_ok=True)


def take_code(code: str) -> bool:
    """Return whether this code lets somebody in; it does so once."""
    file = home() / "logins" / _digest(code)
    try:
        is_fresh = time.time() - file.stat().st_mtime <= LINK_SECONDS
        file.unlink()
    except FileNotFoundError:  # unknown, or somebody else's request took it
        return False
    return is_fresh


def new_cookie(key: str, address: str) -> str:
    """The header's value that makes a browser at this address one that has logged in. Neither
    scripts nor other sites' requests get the cookie."""
    kept = f"Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
    return f"{_name()}={_session(key, address)}; {kept}"


def has_cookie(header: str, key: str, address: str) -> bool:
    """Return whether a request with this `Cookie` header comes from a browser that has logged in
    there.
    """
    wanted = f"{_name()}={_session(key, address)}".encode()
    # Cookies of whatever else this host serves come along, in any form.
    given = [cookie.strip().encode() for cookie in header.split(";")]
    return any(hmac.compare_digest(cookie, wanted) for cookie in given)


def _name() -> str:
    """Homes of one machine share a host, so each has a cookie of its own."""
    return f"tributary-{home_tag()}"


def _session(key: str, address: str) -> str:
    """It follows from the key, which it does not reveal: another key ends all sessions."""
    return hmac.new(key.encode(), f"browser {address}".encode(), "sha256").hexdigest()


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def may_be_our_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether the client of this connection is on another machine, or a program of our own
    user's or root's. Both ends are IPv4 addresses with their ports."""
    if not _is_of_this_machine(client[0]):
        return True
    return any(uid in (os.geteuid(), _ROOT) for uid in _makers(client, server))


def strangers_at(ports: Collection[int], address: str = "127.0.0.1") -> dict[int, int]:
    """Return the ports at which a program of another user's listens, with the user's number; none
    at an address of another machine. Such a program may wait for what is sent to one of ours that
    ended, or has not begun."""
    # The kernel takes ten milliseconds to list connections, and `up` asks again and again.
    if not _is_of_this_machine(address) or all(is_free(port) for port in ports):
        return {}
    return {
        port: uid
        for here, _, state, uid in _sockets()
        if state == _LISTENS and uid not in (os.geteuid(), _ROOT)
        and (port := int(here.rpartition(":")[2], 16)) in ports
    }  # fmt: skip


def _makers(client: tuple[str, int], server: tuple[str, int]) -> Iterator[int]:
    wanted = (_written(client), _written(server))
    for here, there, state, uid in _sockets():
        ends = (here.removeprefix(_MAPPED), there.removeprefix(_MAPPED))
        if ends == wanted and state == _ESTABLISHED:
            yield uid


def _sockets() -> Iterator[tuple[str, str, str, int]]:
    """Both ends, the state and the maker of each of this machine's."""
    for table in _TABLES:
        with suppress(FileNotFoundError), table.open() as lines:
            next(lines, None)  # the names of the columns
            for line in lines:
                _, here, there, state, _, _, _, uid, *_ = line.split()
                yield here, there, state, int(uid)


def _written(end: tuple[str, int]) -> str:
    """Example: ("127.0.0.1", 80) -> "0100007F:0050" """
    number = int.from_bytes(socket.inet_aton(end[0]), sys.byteorder)
    return f"{number:08X}:{end[1]:04X}"


def _is_of_this_machine(address: str) -> bool:
    """Only such an address can be bound."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
