"""Exchange: one request of a client, its turn, and the answer.

body ─▶ request ─▶ session.turn ─▶ answer ─▶ sent to its end ─▶ the turn counts
           └─ client gone: the engine's request is aborted, and the turn is forgotten
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Send

from engines.agents.agent_session import AgentSession
from engines.agents.limits import GatewayLimits
from engines.agents.wire.wire_format import Answer, Refusal, Request, WireFormat

_log = logging.getLogger(__name__)

_WHOLE = b"application/json"
_STREAM = b"text/event-stream; charset=utf-8"
_LONG_BODY = 64 << 10
"""bytes beyond which a request is read beside the event loop"""
_PIECE = 64 << 10
"""bytes of a stream that are sent at once"""


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Exchange:
    """The exchange of one request; it is `run` once."""

    def __init__(
        self,
        find_session: Callable[[HttpRequest], AgentSession],
        limits: GatewayLimits,
        wire: WireFormat,
        request: HttpRequest,
        send: Send,
    ) -> None:
        """`find_session` raises Refusal."""
        self._find_session = find_session
        self._limits = limits
        self._wire = wire
        self._http = request
        self._asgi_send = send
        self._has_begun = False
        """whether a part of the answer is sent"""
        self._gone: asyncio.Task[None] | None = None
        """done when the client has left"""
        self._is_sent = False
        """whether the last part is on its way: that the connection ends now means nothing"""

    async def run(self) -> None:
        """Answer the request with a turn of the policy."""
        with contextlib.suppress(_ClientGone, ClientDisconnect):
            try:
                session, request = await self._read()
                await self._unless_gone(session, request)
            except Refusal as refusal:
                await self._refuse(refusal)
            except (_ClientGone, ClientDisconnect):
                raise
            except Exception as error:
                await self._fail(error)

    async def count(self) -> None:
        """Answer it with the number of tokens that it has (Anthropic)."""
        with contextlib.suppress(_ClientGone, ClientDisconnect):
            try:
                session, request = await self._read()
                tokens = await session.count(request)
                await self._send_whole(200, orjson.dumps({"input_tokens": tokens}))
            except Refusal as refusal:
                await self._refuse(refusal)
            except (_ClientGone, ClientDisconnect):
                raise
            except Exception as error:
                await self._fail(error)

    async def _read(self) -> tuple[AgentSession, Request]:
        session = self._find_session(self._http)
        with session.reading():
            try:
                async with asyncio.timeout(self._limits.stall_s):
                    body = await self._body()
            except TimeoutError:
                raise Refusal(408, f"no whole request in {self._limits.stall_s:g} s") from None
            if len(body) <= _LONG_BODY:
                request = self._wire.request(body)
            else:
                request = await asyncio.to_thread(self._wire.request, body)
        return session, replace(request, size=len(body))

    async def _body(self) -> bytes:
        most = self._limits.body
        too_large = Refusal(413, f"a request may have {most} bytes", "request_too_large")
        declared = self._http.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        body = bytearray()
        async for piece in self._http.stream():
            body += piece
            if len(body) > most:
                raise too_large
        return bytes(body)

    async def _unless_gone(self, session: AgentSession, request: Request) -> None:
        """Give the answer, or give it up when the client leaves. Raises Refusal."""
        work = asyncio.create_task(self._answer(session, request))
        gone = self._gone = asyncio.create_task(self._client_left())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and self._is_sent:
                await asyncio.wait({work})
            is_given_up = work.cancelled() and not self._is_sent
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
        if is_given_up:
            raise Refusal(400, "this session is over: its harness has ended", "session_over")
        if not work.cancelled():
            work.result()

    async def _client_left(self) -> None:
        while (await self._http.receive())["type"] != "http.disconnect":
            pass

    async def _answer(self, session: AgentSession, request: Request) -> None:
        alive = asyncio.create_task(self._signs_of_life()) if request.is_streamed else None
        try:
            async with session.turn(request) as answer:
                if alive is not None:
                    await _end(alive)
                await self._send_answer(answer, request)
                if self._wire.keeps_answers:
                    session.remember(self._wire.answer_id(answer), answer)
        finally:
            if alive is not None:
                await _end(alive)

    async def _signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(self._limits.silence_s)
            await self._send_piece(self._wire.sign_of_life())

    async def _send_answer(self, answer: Answer, request: Request) -> None:
        self._check_client()
        if not request.is_streamed:
            await self._send_whole(200, self._wire.reply(answer))
            return
        for piece in _joined(self._wire.events(answer, request)):
            await self._send_piece(piece)
        self._check_client()
        self._is_sent = True
        await self._send({"type": "http.response.body", "body": b""})

    def _check_client(self) -> None:
        if self._gone is not None and self._gone.done():
            raise _ClientGone

    async def _fail(self, error: Exception) -> None:
        _log.error("a request of a harness could not be answered", exc_info=error)
        said = f"the gateway cannot answer this: {type(error).__name__}: {error}"
        await self._refuse(Refusal(500, said, "server_error"))

    async def _refuse(self, refusal: Refusal) -> None:
        if not self._has_begun:
            await self._send_whole(refusal.status, self._wire.error(refusal))
            return
        await self._send_piece(self._wire.error_event(refusal))
        await self._send({"type": "http.response.body", "body": b""})

    async def _send_whole(self, status: int, body: bytes) -> None:
        self._is_sent = True
        await self._begin(status, _WHOLE, len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def _send_piece(self, body: bytes) -> None:
        if not self._has_begun:
            await self._begin(200, _STREAM)
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _begin(self, status: int, kind: bytes, length: int | None = None) -> None:
        self._has_begun = True
        headers = [(b"content-type", kind), (b"cache-control", b"no-store")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        start: dict[str, object] = {
            "type": "http.response.start",
            "status": status,
            "headers": headers,
        }
        await self._send(start)

    async def _send(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await self._asgi_send(message)
        except (TimeoutError, OSError) as error:
            raise _ClientGone from error


def _joined(events: Iterator[bytes]) -> Iterator[bytes]:
    """Events together, as each piece that is sent costs as much as many of them."""
    piece = bytearray()
    for event in events:
        piece += event
        if len(piece) > _PIECE:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
