"""The coding agent's environment: a repository behind its tools.

The repository is data of the episode, so only `test` needs a sandbox, a fresh one each time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from curricula.coding.tools import TEST, execute
from curricula.tools import check_call
from engines.types import AssistantTurn, Episode, Message, Problem, Step, ToolCall
from infra.repositories.files import Files
from infra.sandbox.python import Demand


class CodingEnvironment:
    """Starts episodes of problems whose reference holds `files` and `protected`."""

    def __init__(self, *, max_calls: int, sandbox: Demand) -> None:
        self._max_calls = max_calls
        self._sandbox: Demand = sandbox

    async def start(self, problem: Problem) -> Episode:
        return CodingEpisode(problem, self._max_calls, self._sandbox)


class CodingEpisode:
    """One rollout. It ends without an answer at the first call beyond `max_calls`."""

    def __init__(self, problem: Problem, max_calls: int, sandbox: Demand) -> None:
        reference: Any = problem.reference
        self._problem = problem
        self._files: Files = reference["files"]
        self._protected: list[str] = reference["protected"]
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
        """Nothing is held: a test's sandbox ends with the test."""

    async def _answer(self, call: ToolCall) -> str:
        given = (call, self._files, self._protected, self._sandbox)
        if call.name == TEST.name:
            answer, self._files = await asyncio.to_thread(execute, *given)
        else:  # takes microseconds: no thread needed
            answer, self._files = execute(*given)
        return answer
