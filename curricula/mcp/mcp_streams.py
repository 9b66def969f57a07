"""McpStreams: messages to and from an MCP server, and the server's process where it has one.

    command in a sandbox ──▶ its port ──▶ a socket of this process ─┐
    command as a process ──▶ pipes ─────────────────────────────────┤──▶ messages
    url ──▶ HTTP ───────────────────────────────────────────────────┘

A server in a sandbox is led by a socket: its standard input and output are a connection to this
process, which the sandbox reaches and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from curricula.mcp.heard import Heard, HeardTooMuch, Streams
from curricula.mcp.spec import McpServer
from infra.errors import InputError
from infra.json_text import json_bytes
from infra.processes.children import MARK_VARIABLE
from infra.sandbox.kinds import bubblewrap
from infra.sandbox.python import make_scratch_folder
from infra.sandbox.sandbox import WORK_ENVIRONMENT, Limits, Sandbox
from infra.sandbox.trees import remove
from infra.secret_references import header_texts, resolved
from infra.user_files import program_files

_PORT = 8080
"""of the sandbox's loopback, which leads here"""
_TOKEN = "MCP_TOKEN"
"""others on this machine may read command lines, and not environments"""
_LED = f"""
import os, socket, sys
server = socket.create_connection(("127.0.0.1", {_PORT}))
server.sendall(os.environ.pop({_TOKEN!r}).encode())
for stream in (0, 1):
    os.dup2(server.fileno(), stream)
command = sys.argv[1:]
if command[0] == "python":
    command[0] = sys.executable
os.execvp(command[0], command)
"""
_LINE = 4 << 20
"""most bytes of one message; a server that sends a longer one is given up"""
_LIVES_S = 6 * 3600.0
_CLOSE_S = 5.0
_KEPT = 4 << 10
"""bytes of what a command wrote last to its errors"""
_LIMITS = Limits(
    seconds=_LIVES_S, cpu_seconds=3600, memory=256 << 30, resident=4 << 30, file_size=64 << 20,
    disk=256 << 20, open_files=256, processes=64,
)  # fmt: skip


def _require_program(server: McpServer) -> None:
    """Raises InputError for a command that is nowhere. A path may lie in the sandbox's folder."""
    name = server.command[0] if server.command else "python"
    if name != "python" and "/" not in name and "PATH" not in server.env and not shutil.which(name):
        raise InputError(
            f"mcp.command: there is no program `{name}` on this machine's PATH; install it, or"
            " write its whole path"
        )


class McpStreams:
    """Serve one event loop, and are opened once."""

    def __init__(self, server: McpServer) -> None:
        """Raises InputError for a secret that is not set, a program that is not there, and where
        nothing can be confined."""
        self._server = server
        self._env, self._headers = resolved(server.env), header_texts(server.headers)
        self._files = program_files(server.program)
        _require_program(server)
        if server.command and server.sandbox and (why := bubblewrap.refusal()):
            raise InputError(
                f"mcp: a sandbox of the kind `bubblewrap` is needed: {why}; or write `sandbox:"
                " false`, if the command may do all that you may"
            )
        self.heard = Heard()
        self.said = ""
        """what the command wrote to its errors, once it has ended"""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Streams]:
        """Messages from the server, and to it."""
        opened = self._over_http() if self._server.url else self._over_lines()
        async with opened as streams:
            yield streams

    @asynccontextmanager
    async def _over_http(self) -> AsyncGenerator[Streams]:
        from mcp.client.streamable_http import streamable_http_client

        longest = max(self._server.start_s, self._server.call_s)
        client = self.heard.client(self._server.url, self._headers, longest)
        async with (
            client,
            streamable_http_client(self._server.url, http_client=client) as (read, write, _),
        ):
            yield read, write

    @asynccontextmanager
    async def _over_lines(self) -> AsyncGenerator[Streams]:
        run = self._in_sandbox() if self._server.sandbox else self._as_process()
        async with run as (reader, writer), _messages(reader, writer, self.heard) as streams:
            yield streams

    @asynccontextmanager
    async def _as_process(self) -> AsyncGenerator[tuple[asyncio.StreamReader, Any]]:
        command = list(self._server.command)
        if command[0] == "python":
            command[0] = sys.executable
        names = ("PATH", "HOME", "LANG", "USER", "TMPDIR", MARK_VARIABLE)
        inherited = {name: os.environ[name] for name in names if name in os.environ}
        folder = Path(await asyncio.to_thread(make_scratch_folder))
        try:
            for path, content in self._files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            process = await asyncio.create_subprocess_exec(
                *command, stdin=-1, stdout=-1, stderr=-1, cwd=folder, limit=_LINE,
                env={**inherited, **self._env}, start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            said = asyncio.create_task(_last_of(process.stderr))
            try:
                yield process.stdout, process.stdin
            finally:
                # While it runs: of one that has ended it is not known what it started.
                await asyncio.to_thread(_end_family, process.pid)
                process.stdin.close()
                # asyncio calls a process ended once its outputs are read to their ends.
                ending = [said, asyncio.create_task(_last_of(process.stdout))]
                ending.append(asyncio.create_task(_ended(process)))
                await asyncio.wait(ending, timeout=3.0)
                self.said = said.result() if said.done() else ""
                for task in ending:
                    task.cancel()
        finally:
            await asyncio.to_thread(remove, str(folder))

    @asynccontextmanager
    async def _in_sandbox(self) -> AsyncGenerator[tuple[asyncio.StreamReader, Any]]:
        token, loop = secrets.token_hex(16), asyncio.get_running_loop()
        threads = ThreadPoolExecutor(1, thread_name_prefix="mcp")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            try:
                starting = loop.run_in_executor(threads, self._boxed, address)
                try:
                    box = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    starting.add_done_callback(_stop)
                    raise
                running = loop.run_in_executor(threads, self._run, box, token)
                coming = asyncio.create_task(_caller(listener, token.encode()))
                try:
                    await asyncio.wait({coming, running}, return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise ConnectionError("it ended before it said anything")
                    listener.close()
                    yield coming.result()
                finally:
                    has_come = coming.done() and coming.exception() is None
                    coming.cancel()
                    if has_come and coming.result()[0].at_eof():  # it ended, and may say why
                        await asyncio.wait({running}, timeout=2.0)
                    await asyncio.to_thread(box.stop)
                    if has_come:
                        coming.result()[1].close()
                    await asyncio.wait({running}, timeout=_CLOSE_S)
            finally:
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
        command = ["python", "-c", _LED, *self._server.command]
        environment = {**WORK_ENVIRONMENT, **paths, **self._env, _TOKEN: token}
        try:
            result = box.exec(command, environment=environment)
            self.said = result.stderr or f"it ended ({result.status}, {result.exit_code})"
        except Exception as error:  # it was stopped, or is lost
            self.said = str(error)


async def _caller(
    listener: socket.socket, token: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The first connection that says the token. Of any other nothing more is read than that."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[socket.socket] = loop.create_future()

    async def greet(caller: socket.socket) -> None:
        said = b""
        while len(said) < len(token) and (piece := await loop.sock_recv(caller, len(token))):
            said += piece
        if secrets.compare_digest(said, token) and not came.done():
            came.set_result(caller)
        else:
            caller.close()

    async def accept() -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                caller, _ = await loop.sock_accept(listener)
                group.create_task(greet(caller))

    accepting = asyncio.create_task(accept())
    try:
        caller = await came
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
    return await asyncio.open_connection(sock=caller, limit=_LINE)


async def _last_of(stream: asyncio.StreamReader) -> str:
    last = b""
    while piece := await stream.read(1 << 16):
        last = (last + piece)[-_KEPT:]
    return last.decode(errors="replace")


async def _ended(process: asyncio.subprocess.Process) -> str:
    return f"{await process.wait()}"


def _end_family(pid: int) -> None:
    """Also those of it that left the group."""
    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.Error):
            process.kill()


def _packages(server: McpServer) -> list[str]:
    """Where this environment's packages lie, for a server in its Python."""
    if server.command[0] != "python":
        return []
    return list(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


def _stop(started: asyncio.Future[Sandbox]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()


@asynccontextmanager
async def _messages(
    reader: asyncio.StreamReader, writer: Any, heard: Heard
) -> AsyncGenerator[Streams]:
    """Messages as lines of JSON; other lines are passed over, as the specification wants it."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage
    from pydantic import ValidationError

    told, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, asked = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with told:
            with suppress(ValueError, ConnectionError, HeardTooMuch):  # a line without end, ...
                while line := await reader.readline():
                    heard.line(line)
                    with suppress(ValidationError):
                        message = JSONRPCMessage.model_validate_json(line)
                        await told.send(SessionMessage(message))

    async def send() -> None:
        async with asked:
            async for message in asked:
                heard.asked()
                said: Mapping[str, Any] = message.message.model_dump(
                    by_alias=True, exclude_none=True
                )
                with suppress(ConnectionError):
                    writer.write(json_bytes(said) + b"\n")
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
