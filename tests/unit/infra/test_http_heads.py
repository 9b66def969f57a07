"""Who has no key fills no memory of a server of ours, and holds no connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from infra.guard import Message, Receive, Send
from infra.processes import http_heads
from infra.processes.http_heads import MOST_BYTES, BoundedHeads
from infra.stack.record import Stack
from infra.stack.services import services

pytestmark = pytest.mark.unit
PIECE = 64 << 10
BEGIN = b"POST /x HTTP/1.1\r\nhost: here\r\n"
CHUNKED = BEGIN + b"transfer-encoding: chunked\r\n\r\n"


async def _app(scope: Message, receive: Receive, send: Send) -> None:
    """Says how many bytes a request has."""
    del scope
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    told = str(size).encode()
    headers = [(b"content-length", str(len(told)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": told})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _serving() -> AsyncGenerator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(_app, log_config=None, lifespan="off", http=BoundedHeads)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listening]))
    yield listening.getsockname()[1]
    server.should_exit = server.force_exit = True
    await task


async def _sent_until_closed(port: int, begin: bytes, piece: Callable[[int], bytes]) -> int:
    """Bytes that the server takes of what has no end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 0
    try:
        writer.write(begin)
        while size < 64 << 20:
            sent = piece(size)
            writer.write(sent)
            size += len(sent)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    finally:
        writer.close()
        del reader
    return size


ENDLESS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "one header": (BEGIN + b"a: ", lambda _: b"x" * PIECE),
    "many headers": (BEGIN, lambda size: b"a%d: b\r\n" % size * (PIECE // 16)),
    "the name of a header": (BEGIN, lambda _: b"x" * PIECE),
    "the path": (b"GET /", lambda _: b"x" * PIECE),
    "empty lines": (b"", lambda _: b"\r\n" * (PIECE // 2)),
    "a line behind the body": (CHUNKED + b"0\r\na: ", lambda _: b"x" * PIECE),
    "lines behind the body": (CHUNKED + b"0\r\n", lambda _: b"a: b\r\n" * (PIECE // 8)),
    "the size of a piece": (CHUNKED + b"1;a=", lambda _: b"x" * PIECE),
    "the next head": (BEGIN + b"content-length: 1\r\n\r\nx" + BEGIN, lambda _: b"x" * PIECE),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_what_no_head_ends_is_not_kept(what: str) -> None:
    async with _serving() as port:
        in_the_sockets = 8 << 20
        assert await _sent_until_closed(port, *ENDLESS[what]) < MOST_BYTES + in_the_sockets


@pytest.mark.parametrize("begin", [b"", b"G", BEGIN, BEGIN + b"content-length: 0\r\n\r\n" + b"G"])
async def test_half_a_head_is_not_waited_for(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_heads, "HEAD_S", 0.1)
    async with _serving() as port, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin[:-1])
        await asyncio.sleep(0.05)
        writer.write(begin[-1:])
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()


async def test_long_bodies_and_pauses_between_requests_are_nothing_to_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_heads, "HEAD_S", 0.1)
    length = 2 * MOST_BYTES
    whole = BEGIN + f"content-length: {length}\r\n\r\n".encode() + b"x" * length
    pieces = CHUNKED + b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n"
    async with _serving() as port, asyncio.timeout(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for sent, size in ((whole, length), (pieces, 1000), (whole, length)):
            writer.write(sent)
            told = str(size).encode()
            assert (await reader.readuntil(told)).endswith(b"\r\n\r\n" + told)
            await asyncio.sleep(0.15)
        writer.close()


async def test_no_more_connections_than_half_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_heads, "most_connections", lambda: 3)
    async with _serving() as port, asyncio.timeout(5):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        with contextlib.suppress(ConnectionError):
            assert await opened[3][0].read() == b""
        opened[0][1].write(BEGIN + b"\r\n")
        assert (await opened[0][0].readline()).startswith(b"HTTP/1.1 200")
        for _, writer in opened:
            writer.close()


def test_prefect_and_mlflow_read_heads_by_the_reader_that_bounds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIBUTARY_HOME", str(tmp_path))
    names = ("prefect", "mlflow", "ray_gcs", "ray_dashboard", "ray_client", "ray_object_manager",
             "ray_node_manager", "ray_agent_http", "ray_agent_grpc", "ray_runtime_env")  # fmt: skip
    stack = Stack(mark="m", ports=dict.fromkeys(names, 1))
    commands = {each.name: " ".join(each.command) for each in services(stack)}
    assert "--http h11" in commands["prefect-server"]
    assert "--uvicorn-opts --http h11" in commands["mlflow"]
