"""The agent's environment: a problem's world behind its tools.

An episode reacts to each assistant turn: tool calls get their answers; a turn without calls is the
final answer and ends it. A call that breaks the protocol raises `ProtocolBreak`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from curricula.tools import SEARCH, check_call, execute
from curricula.worlds import Entity, World
from engines.types import AssistantTurn, Episode, Message, Problem, Step, ToolCall
from infra.sandbox.python import Demand


class ToolEnvironment:
    """Starts episodes of problems whose reference holds `{"world": [[name, text], ...]}`."""

    def __init__(self, *, max_calls: int, sandbox: Demand) -> None:
        self._max_calls = max_calls
        self._sandbox: Demand = sandbox

    async def start(self, problem: Problem) -> Episode:
        return ToolEpisode(problem, self._max_calls, self._sandbox)


class ToolEpisode:
    """One rollout. It ends without an answer at the first call beyond `max_calls`."""

    def __init__(self, problem: Problem, max_calls: int, sandbox: Demand) -> None:
        self._problem = problem
        self._world = world_of(problem)
        self._calls_left = max_calls
        self._sandbox: Demand = sandbox

    async def step(self, turn: AssistantTurn) -> Step:
        if not turn.tool_calls:
            return Step(done=True)
        for call in turn.tool_calls:
            check_call(call, self._problem.tools)
        self._calls_left -= len(turn.tool_calls)
        if self._calls_left < 0:
            return Step(done=True)
        answers = [Message("tool", await self._answer(call)) for call in turn.tool_calls]
        return Step(tuple(answers))

    async def close(self) -> None:
        """Nothing is held: an index is in memory and shared by its group."""

    async def _answer(self, call: ToolCall) -> str:
        if call.name == SEARCH.name:  # takes microseconds: no thread needed
            return execute(call, self._world, self._sandbox)
        return await asyncio.to_thread(execute, call, self._world, self._sandbox)


def world_of(problem: Problem) -> World:
    """The world that a problem belongs to."""
    reference: Any = problem.reference
    return tuple(Entity(name, text) for name, text in reference["world"])
