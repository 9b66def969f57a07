"""What is heard of an MCP server: within bounds, and nothing but answers.

A server may be anybody's. What it says unasked (its log, its progress, requests of its own) changes
nothing here, and the package `mcp` writes much of that into the stage's log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from infra.processes.network import goes_by_proxies

if TYPE_CHECKING:
    from mcp.types import JSONRPCMessage

Streams: TypeAlias = tuple[Any, Any]
"""messages from the server, and to it"""
_MOST = 16 << 20
_MESSAGE, _BRACKET, _LINE, _ANSWER = 4 << 10, 512, 1 << 10, 64 << 10
"""what a message, an opening bracket, a line of a stream and an answer over HTTP count beside their
bytes: reading them takes the time of all rollouts"""
_NO_METHOD = -32601


class HeardTooMuch(Exception):
    """The server says more than an answer can be."""


class Heard:
    """Counts what comes between two messages to the server. For one event loop."""

    def __init__(self) -> None:
        self._left = _MOST
        self.is_full = asyncio.Event()
        """set where it was too much"""

    def asked(self) -> None:
        self._left = _MOST

    def line(self, line: bytes) -> None:
        """Count a message. Raises HeardTooMuch."""
        self._count(_MESSAGE + _weight(line))

    def client(self, url: str, headers: Mapping[str, str], longest_s: float) -> httpx.AsyncClient:
        """Make a client of the server at `url`. Answers are counted as they come, and come as they
        are: 600 bytes that were packed twice may be 256 MB."""

        async def asked(request: httpx.Request) -> None:
            if request.method == "POST":
                self.asked()

        async def answered(response: httpx.Response) -> None:
            self._count(_ANSWER)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx.DecodingError("its answer is packed", request=response.request)
            response.stream = _Counted(response.stream, self)

        logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)  # it logs what servers send
        return httpx.AsyncClient(
            headers={**headers, "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(longest_s, read=None), trust_env=goes_by_proxies(url),
            event_hooks={"request": [asked], "response": [answered]},
        )  # fmt: skip

    def piece(self, piece: bytes) -> None:
        """Count a part of an answer over HTTP. Raises HeardTooMuch."""
        self._count(_weight(piece) + _LINE * piece.count(b"\n"))

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            self.is_full.set()
            raise HeardTooMuch


def _weight(text: bytes) -> int:
    return len(text) + _BRACKET * (text.count(b"{") + text.count(b"["))


class _Counted(httpx.AsyncByteStream):
    def __init__(self, stream: Any, heard: Heard) -> None:
        self._stream, self._heard = stream, heard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._heard.piece(piece)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def answers_alone(streams: Streams, heard: Heard) -> AsyncGenerator[Streams]:
    """Let through only the answers of what the server says, up to where it says too much; its own
    requests are answered here."""
    import anyio
    from mcp.shared.message import SessionMessage

    read, write = streams
    told, answers = anyio.create_memory_object_stream[Any](0)

    async def hear() -> None:
        async with told:
            async for message in read:
                if not isinstance(message, SessionMessage):
                    continue  # what could not be read
                if (reply := _reply(message.message)) is not None:
                    await write.send(SessionMessage(reply))
                elif _is_answer(message.message):
                    await told.send(message)

    async def until_it_is_too_much() -> None:
        hearing = asyncio.create_task(hear())
        full = asyncio.create_task(heard.is_full.wait())
        try:
            await asyncio.wait({hearing, full}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hearing, full):
                task.cancel()
            await asyncio.gather(hearing, full, return_exceptions=True)
            await told.aclose()

    task = asyncio.create_task(until_it_is_too_much())
    try:
        yield answers, write
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for stream in (answers, read, write):
            await stream.aclose()


def _is_answer(message: JSONRPCMessage) -> bool:
    """Return whether it has a number of ours; the package would log any other text."""
    from mcp.types import JSONRPCError, JSONRPCResponse

    root = message.root
    return isinstance(root, JSONRPCResponse | JSONRPCError) and isinstance(root.id, int)


def _reply(message: JSONRPCMessage) -> JSONRPCMessage | None:
    """To a request of the server's: that we are here, or that we do no such thing."""
    from mcp.types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

    asked = message.root
    if not isinstance(asked, JSONRPCRequest):
        return None
    if asked.method == "ping":
        return JSONRPCMessage(JSONRPCResponse(jsonrpc="2.0", id=asked.id, result={}))
    refused = ErrorData(code=_NO_METHOD, message="this client offers nothing")
    return JSONRPCMessage(JSONRPCError(jsonrpc="2.0", id=asked.id, error=refused))
