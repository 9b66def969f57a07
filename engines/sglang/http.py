"""Short control calls to engine processes, with every reply checked; and connections for turns.

Calls need the standard library only: trainers make them too, and one connection a call costs under
1 ms here.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from infra.access import bearer_of
from infra.errors import EngineError

if TYPE_CHECKING:
    import aiohttp


MOST_ANSWERED = 64 << 20
"""bytes of an answer to a control call or a score: a server of others may send without end"""
_TOO_LONG = "its answer has more than {most:,} bytes, which none of these has"


class NoConnection(EngineError):
    """Nobody listens there, or the connection broke: the process ended, or its host."""


class NoAnswerInTime(EngineError):
    """Somebody listens and did not answer in time: the process is busy, or it hangs."""


class Refused(EngineError):
    """The answer is a status of 400 or more."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)  # both, for pickling
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownRequest(Refused):
    """The process does not know the path: a status of 404."""


class ServerReply(dict[str, Any]):
    """A JSON object that a server answered. A missing key raises EngineError, not KeyError."""

    def __init__(self, origin: str, content: dict[str, Any]) -> None:
        super().__init__(content)
        self._origin = origin

    def __missing__(self, name: str) -> Any:
        raise EngineError(f"{self._origin} answered without {name!r}: {str(dict(self))[:300]}")


def call(
    url: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    timeout: float,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> ServerReply:
    """POST `body` as JSON (GET without one) and return the JSON object that is answered.

    Raises NoConnection, NoAnswerInTime (within `timeout` seconds) or Refused; and EngineError on
    an answer that is no JSON object, or one that says `success: false`: SGLang answers 200 to some
    refusals.
    """
    text, origin = _exchange(url, path, body, timeout, method, headers)
    try:
        reply = json.loads(text)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise EngineError(f"{origin} did not answer with a JSON object: {text[:300]!r}")
    if reply.get("success") is False:
        raise EngineError(f"{origin} failed: {reply.get('message') or text[:500]}")
    return ServerReply(origin, reply)


def require_whole(reply: Mapping[str, Any], url: str) -> None:
    """Raises Refused for an answer to `/generate` that the engine gave up: with the status that it
    names, or 503, where another try may help."""
    end = (reply.get("meta_info") or {}).get("finish_reason") or {}
    if end.get("type") == "abort":
        told = f"POST {url}/generate: the engine gave it up: {str(end)[:300]}"
        raise Refused(told, end.get("status_code") or 503)


def order(url: str, path: str, body: dict[str, Any], *, timeout: float) -> None:
    """Make a `call` that changes a server's state: its answer has to say that this was done."""
    reply = call(url, path, body, timeout=timeout)
    if reply.get("success") is not True and reply.get("status") != "ok":
        raise EngineError(f"POST {url}{path} was not confirmed: {str(dict(reply))[:300]}")


def read_text(url: str, path: str, body: dict[str, Any] | None = None, *, timeout: float) -> str:
    """Make a call that is answered as text. Raises EngineError as `call` does up to the status."""
    return _exchange(url, path, body, timeout, "")[0]


def _exchange(
    url: str,
    path: str,
    body: dict[str, Any] | None,
    timeout: float,
    method: str,
    more_headers: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """The answer's text, and what was asked, for messages."""
    method = method or ("GET" if body is None else "POST")
    origin = f"{method} {url}{path}"
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    payload = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | bearer_of(url) | dict(more_headers or {})
    try:
        connection.request(method, path, payload, headers)
        response = connection.getresponse()
        content = response.read(MOST_ANSWERED + 1)
    except TimeoutError as error:
        raise NoAnswerInTime(
            f"{origin}: no answer in {timeout:.0f} s; the process is busy or hangs"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise NoConnection(f"{origin}: no connection: {error!r}; is it alive?") from error
    finally:
        connection.close()
    if len(content) > MOST_ANSWERED:
        raise EngineError(f"{origin}: {_TOO_LONG.format(most=MOST_ANSWERED)}")
    text = content.decode(errors="replace")
    if response.status >= 400:
        error = UnknownRequest if response.status == 404 else Refused
        told = f"{origin} was refused ({response.status}): {text[:500]}"
        raise error(told, response.status)
    return text, origin


def connections(
    connect_s: float, silent_s: float | None = None, url: str = ""
) -> aiohttp.ClientSession:
    """Open connections for one event loop. With `url`, every request carries the key of the server
    there, also one to a server that it says is behind it: our own key goes nowhere where a
    stranger's router leads.

    Raises Refused for an answer that leads elsewhere: a server of others could have prompts sent to
    any address that this machine reaches.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silent_s),
        headers={"Content-Type": "application/json"} | (bearer_of(url) if url else {}),
        middlewares=(_not_elsewhere,),
    )


async def read_bounded(response: aiohttp.ClientResponse, most: int = 0) -> bytes:
    """The answer's body. Raises EngineError for one of more bytes than `most` (0: than any control
    call or score has)."""
    most = most or MOST_ANSWERED
    chunks, size = list[bytes](), 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            response.close()
            told = f"{response.method} {response.url}: {_TOO_LONG.format(most=most)}"
            raise EngineError(told)
    return b"".join(chunks)


async def _not_elsewhere(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await send(request)
    if 300 <= response.status < 400:
        response.close()
        told = (
            f"{request.method} {request.url}: it answers {response.status}, which leads elsewhere"
        )
        raise Refused(told, response.status)
    return response
