"""An episode that only answers tool calls."""

from __future__ import annotations

from typing import Protocol

from curricula.tools import check_call
from engines.types import AssistantTurn, Message, Problem, Step, ToolCall


class Tools(Protocol):
    """What stands behind one episode's tools."""

    async def answer(self, call: ToolCall) -> str:
        """What a checked call is answered."""
        ...


class ToolEpisode:
    """One rollout: calls get their answers, a turn without calls ends it. It ends without an answer
    at the first call beyond `max_calls`. A call that breaks the protocol raises `ProtocolBreak`."""

    def __init__(self, problem: Problem, tools: Tools, max_calls: int) -> None:
        self._problem, self._tools, self._calls_left = problem, tools, max_calls

    async def step(self, turn: AssistantTurn) -> Step:
        if not turn.tool_calls:
            return Step(done=True)
        for call in turn.tool_calls:
            check_call(call, self._problem.tools)
        self._calls_left -= len(turn.tool_calls)
        if self._calls_left < 0:
            return Step(done=True)
        return Step(tuple([Message("tool", await self._tools.answer(c)) for c in turn.tool_calls]))

    async def close(self) -> None:
        """Nothing is held between two calls."""
