"""Problems with the tools of an MCP server, and the environment in which they are called.

Tools are listed once a process, and each episode that calls one has a session of its own: a server
by `command` is a new process, which ends with the episode.

    first call ──▶ a place (at_once) ──▶ a server starts ──▶ calls ──▶ it has ended ──▶ the next one
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

from curricula.mcp.mcp_connection import McpConnection, McpLost
from curricula.mcp.spec import McpServer
from engines.types import (
    AssistantTurn,
    Curriculum,
    Demonstration,
    Environment,
    Episode,
    Message,
    Problem,
    RowCurriculum,
    Split,
    Step,
    Tool,
)
from infra.errors import InputError
from infra.processes.coroutines import waiting_for_turn


def with_tools(curriculum: Curriculum, server: McpServer) -> Curriculum:
    """Raises InputError for a curriculum that has an environment of its own."""
    if curriculum.environment() is not None:
        raise InputError(
            "mcp: this curriculum has an environment with tools of its own; leave `mcp` out, or"
            " take problems without one, e.g. of `files`"
        )
    of_rows = isinstance(curriculum, RowCurriculum)
    return _RowsWithTools(curriculum, server) if of_rows else _WithTools(curriculum, server)


def listed_tools(server: McpServer) -> list[Tool]:
    """Return the tools that the model may call. Blocks. Raises InputError where the server does not
    say."""

    async def ask() -> list[Tool]:
        connection = McpConnection(server)
        try:
            return await asyncio.wait_for(connection.tools(), server.start_s + server.call_s)
        finally:
            await connection.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # whoever asks may be in an event loop
            found = thread.submit(asyncio.run, ask()).result()
    except (McpLost, TimeoutError) as error:
        raise InputError(f"mcp: {error or f'{server.title} lists no tools in time'}") from error
    names = [tool.name for tool in found]
    if unknown := [name for name in server.tools if name not in names]:
        raise InputError(
            f"mcp.tools: {server.title} has no tool {unknown[0]!r}; it has {', '.join(names)}"
        )
    return [tool for tool in found if not server.tools or tool.name in server.tools]


class _WithTools:
    def __init__(self, curriculum: Any, server: McpServer) -> None:
        self._curriculum, self._server = curriculum, server

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        return tuple(listed_tools(self._server))

    def _offered(self, problem: Problem) -> Problem:
        return replace(problem, tools=(*problem.tools, *self._tools))

    def _shown(self, given: Iterable[Demonstration]) -> list[Demonstration]:
        return [replace(each, problem=self._offered(each.problem)) for each in given]

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return [self._offered(p) for p in self._curriculum.problems(split, count, seed, start)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        return self._shown(self._curriculum.demonstrations(count, seed))

    def environment(self) -> Environment:
        return McpEnvironment(self._server)


class _RowsWithTools(_WithTools):
    """Answers what is asked of a user's rows, as they do themselves."""

    @property
    def left_out(self) -> Iterable[str]:
        return self._curriculum.left_out

    @property
    def warnings(self) -> Iterable[Any]:
        return getattr(self._curriculum, "warnings", ())

    def examples(self, count: int, seed: int) -> Sequence[Demonstration]:
        return self._shown(self._curriculum.examples(count, seed))

    def leave_out(
        self, fault_of: Callable[[Problem], str], num_bytes: int, *, is_judged: bool
    ) -> None:
        def fault(problem: Problem) -> str:
            return fault_of(self._offered(problem))

        if hasattr(self._curriculum, "leave_out"):
            self._curriculum.leave_out(fault, num_bytes, is_judged=is_judged)


class McpEnvironment:
    """Starts episodes with sessions of their own, no more at once than its bound. For one event
    loop."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._places = asyncio.Semaphore(server.at_once)

    async def start(self, problem: Problem) -> Episode:
        return _McpEpisode(problem, self._server.max_calls, self._connected)

    async def _connected(self) -> McpConnection:
        """Connect once a place is free. Raises InputError as `McpConnection` does."""
        with waiting_for_turn():
            await self._places.acquire()
        try:
            connection = McpConnection(self._server)
        except BaseException:
            self._places.release()
            raise
        connection.on_ended(self._places.release)
        return connection


class _McpEpisode:
    """Ends with a turn that calls nothing, or with a call too many. What is wrong with a call is
    said in its result; a server that is gone raises McpLost, and the rollout is a failed one."""

    def __init__(
        self, problem: Problem, max_calls: int, connect: Callable[[], Awaitable[McpConnection]]
    ) -> None:
        self._names = [tool.name for tool in problem.tools]
        self._calls_left, self._connect = max_calls, connect
        self._connection: McpConnection | None = None

    async def step(self, turn: AssistantTurn) -> Step:
        self._calls_left -= len(turn.tool_calls)
        if not turn.tool_calls or self._calls_left < 0:
            return Step(done=True)
        results: list[Message] = []
        for call in turn.tool_calls:
            if call.name in self._names:
                self._connection = self._connection or await self._connect()
                said = await self._connection.call(call.name, call.arguments)
            else:
                said = f"error: no tool {call.name!r}; there are {', '.join(self._names)}"
            results.append(Message("tool", said))
        return Step(tuple(results))

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
