"""McpConnection: a session with an MCP server, and the server's process where it has one.

    call ──▶ ClientSession (package `mcp`) ──▶ lines on a socket or pipes, or HTTP ──▶ server

A server in a sandbox is led by a socket: its standard input and output are a connection to this
process, which the sandbox reaches and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from curricula.mcp.spec import McpServer
from engines.types import Json, Tool
from infra.errors import InputError
from infra.sandbox.kinds import bubblewrap
from infra.sandbox.sandbox import WORK_ENVIRONMENT, Limits, Sandbox
from infra.secret_references import resolved
from infra.user_files import program_files

if TYPE_CHECKING:
    from mcp import ClientSession

_PORT = 8080
"""of the sandbox's loopback, which leads here"""
_LED = """
import os, socket, sys
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
server.sendall(sys.argv[2].encode() + b"\\n")
for stream in (0, 1):
    os.dup2(server.fileno(), stream)
command = sys.argv[3:]
if command[0] == "python":
    command[0] = sys.executable
os.execvp(command[0], command)
"""
_LINE = 4 << 20
"""most bytes of one message; a server that sends a longer one is given up"""
_LIVES_S = 6 * 3600.0
_CLOSE_S = 5.0
_TOLD = 300
_LIMITS = Limits(
    seconds=_LIVES_S, cpu_seconds=3600, memory=256 << 30, resident=4 << 30, file_size=64 << 20,
    disk=256 << 20, open_files=256, processes=64,
)  # fmt: skip
_Streams: TypeAlias = tuple[Any, Any]
"""messages from the server, and to it"""


class McpLost(Exception):
    """The server does not start, does not answer, or is gone."""


class McpConnection:
    """For one event loop; its calls may come from any task of it."""

    def __init__(self, server: McpServer) -> None:
        """Starts it. Raises InputError for a secret that is not set, a program that is not there,
        and where nothing can be confined."""
        self._server = server
        self._given = {**resolved(server.env)}, {**resolved(server.headers)}
        self._files = program_files(server.program)
        if server.command and server.sandbox and (why := bubblewrap.refusal()):
            raise InputError(
                f"mcp: a sandbox of the kind `bubblewrap` is needed: {why}; or write `sandbox:"
                " false`, if the command may do all that you may"
            )
        self._said = ""
        """what the command wrote to its errors"""
        self._over = asyncio.Event()
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        # The session's scopes must be left by the task that entered them.
        self._task = asyncio.create_task(self._hold())

    async def close(self) -> None:
        """End the session, and its process."""
        self._over.set()
        await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if self._session.done() and not self._session.cancelled():
            self._session.exception()

    async def tools(self) -> list[Tool]:
        """All that it lists. Raises McpLost."""
        session, found, cursor = await self._open(), list[Tool](), None
        while True:
            from mcp.types import PaginatedRequestParams

            try:
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            except Exception as error:
                raise self._lost("lists no tools", error) from error
            found += [
                Tool.of_function(
                    {
                        "name": each.name,
                        "description": each.description or "",
                        "parameters": each.inputSchema,
                    }
                )
                for each in page.tools
            ]
            if (cursor := page.nextCursor) is None:
                return found

    async def call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """What the model is told: the result, or why there is none. Raises McpLost."""
        from mcp import McpError
        from mcp.types import CONNECTION_CLOSED, TextContent

        session = await self._open()
        limit = timedelta(seconds=self._server.call_s)
        try:
            result = await session.call_tool(name, dict(arguments), read_timeout_seconds=limit)
        except McpError as error:
            if error.error.code == CONNECTION_CLOSED or self._task.done():
                raise self._lost("is gone", error) from error
            if error.error.code == 408:
                return f"error: no answer within {self._server.call_s:g} s"
            return self._bounded(f"error: {error}")
        except Exception as error:  # of the package, e.g. a result that breaks the server's schema
            if self._task.done():
                raise self._lost("is gone", error) from error
            return self._bounded(f"error: {error}")
        parts = [
            part.text if isinstance(part, TextContent) else f"({part.type}: not shown)"
            for part in result.content
        ]
        return self._bounded(("error: " if result.isError else "") + "\n".join(parts))

    def _bounded(self, text: str) -> str:
        most = self._server.result_chars
        more = len(text) - most
        return text if more <= 0 else f"{text[:most]}\n({more} more characters are left out)"

    async def _open(self) -> ClientSession:
        try:
            return await asyncio.shield(self._session)
        except McpLost:
            raise
        except Exception as error:
            raise self._lost("does not start", error) from error

    def _lost(self, what: str, error: BaseException) -> McpLost:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        why = self._said.strip()[-_TOLD:] or f"{type(error).__name__}: {error}".rstrip(": ")
        return McpLost(f"{self._server.title} {what}: {why}")

    async def _hold(self) -> None:
        from mcp import ClientSession

        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.start_s):
                    opened = self._over_http() if self._server.url else self._over_lines()
                    streams = await stack.enter_async_context(opened)
                    session = await stack.enter_async_context(ClientSession(*streams))
                    await session.initialize()
                self._session.set_result(session)
                await self._over.wait()
        except TimeoutError:
            self._fail(TimeoutError(f"no answer within start_s {self._server.start_s:g}"))
        except Exception as error:  # how it ends is nobody's business once it is over
            self._fail(error)
        finally:
            if not self._session.done():
                self._session.cancel()

    def _fail(self, error: Exception) -> None:
        if not self._session.done():
            self._session.set_exception(self._lost("does not start", error))

    @asynccontextmanager
    async def _over_http(self) -> AsyncGenerator[_Streams]:
        import httpx
        from mcp.client.streamable_http import streamable_http_client

        longest = max(self._server.start_s, self._server.call_s)
        limits = httpx.Timeout(longest, read=None)
        async with (
            httpx.AsyncClient(headers=self._given[1], timeout=limits) as client,
            streamable_http_client(self._server.url, http_client=client) as (read, write, _),
        ):
            yield read, write

    @asynccontextmanager
    async def _over_lines(self) -> AsyncGenerator[_Streams]:
        run = self._in_sandbox() if self._server.sandbox else self._as_process()
        async with run as (reader, writer), _messages(reader, writer) as streams:
            yield streams

    @asynccontextmanager
    async def _as_process(self) -> AsyncGenerator[tuple[asyncio.StreamReader, Any]]:
        command = list(self._server.command)
        if command[0] == "python":
            command[0] = sys.executable
        names = ("PATH", "HOME", "LANG", "USER", "TMPDIR")
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mcp-"))
        try:
            for name, content in self._files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            with (folder / ".errors").open("w+") as errors:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=-1, stdout=-1, stderr=errors, cwd=folder, limit=_LINE,
                    env=inherited | self._given[0], start_new_session=True,
                )  # fmt: skip
                try:
                    assert process.stdout is not None
                    yield process.stdout, process.stdin
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
                    self._said = (folder / ".errors").read_text(errors="replace")[-8 * _TOLD :]
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    @asynccontextmanager
    async def _in_sandbox(self) -> AsyncGenerator[tuple[asyncio.StreamReader, Any]]:
        token, loop = secrets.token_hex(16), asyncio.get_running_loop()
        came: asyncio.Future[tuple[asyncio.StreamReader, Any]] = loop.create_future()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (await reader.readline()).decode(errors="replace").strip() != token or came.done():
                writer.close()
                return
            came.set_result((reader, writer))

        threads = ThreadPoolExecutor(1, thread_name_prefix="mcp")
        listener = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_LINE)
        try:
            port: int = listener.sockets[0].getsockname()[1]
            starting = loop.run_in_executor(threads, self._boxed, f"127.0.0.1:{port}")
            try:
                box = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(_stop)
                raise
            running = loop.run_in_executor(threads, self._run, box, token)
            try:
                await asyncio.wait({came, running}, return_when=asyncio.FIRST_COMPLETED)
                if not came.done():
                    raise McpLost(f"{self._server.title} does not start: {self._said[-_TOLD:]}")
                yield came.result()
            finally:
                if came.done() and came.result()[0].at_eof():  # it ended, and may say why
                    await asyncio.wait({running}, timeout=1.0)
                await asyncio.to_thread(box.stop)
                await asyncio.wait({running}, timeout=_CLOSE_S)
        finally:
            listener.close()
            threads.shutdown(wait=False)

    def _boxed(self, address: str) -> Sandbox:
        readable = [*self._server.readable, *_packages(self._server)]
        box = bubblewrap.start(_LIMITS, readable=readable, reach={_PORT: address})
        try:
            for name, content in self._files.items():
                box.write(name, content)
        except BaseException:
            box.stop()
            raise
        return box

    def _run(self, box: Sandbox, token: str) -> None:
        """Until it ends, or the sandbox is stopped."""
        paths = {"PYTHONPATH": os.pathsep.join(found)} if (found := _packages(self._server)) else {}
        command = ["python", "-c", _LED, str(_PORT), token, *self._server.command]
        try:
            result = box.exec(command, environment={**WORK_ENVIRONMENT, **paths, **self._given[0]})
            self._said = result.stderr or f"it ended ({result.status}, {result.exit_code})"
        except Exception as error:  # it was stopped, or is lost
            self._said = str(error)


def _packages(server: McpServer) -> list[str]:
    """Where this environment's packages lie, for a server in its Python."""
    if server.command[0] != "python":
        return []
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def _stop(started: asyncio.Future[Sandbox]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()


@asynccontextmanager
async def _messages(reader: asyncio.StreamReader, writer: Any) -> AsyncGenerator[_Streams]:
    """Messages as lines of JSON; other lines are passed over, as the specification wants it."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage
    from pydantic import ValidationError

    told, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, asked = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with told:
            with suppress(ValueError, ConnectionError):  # a line without end, a server that is gone
                while line := await reader.readline():
                    with suppress(ValidationError):
                        message = JSONRPCMessage.model_validate_json(line)
                        await told.send(SessionMessage(message))

    async def send() -> None:
        async with asked:
            async for message in asked:
                text = message.message.model_dump_json(by_alias=True, exclude_none=True)
                with suppress(ConnectionError):
                    writer.write(text.encode() + b"\n")
                    await writer.drain()

    tasks = [asyncio.create_task(receive()), asyncio.create_task(send())]
    try:
        yield read, write
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (told, read, write, asked):
            await stream.aclose()
        writer.close()
