"""The coding agent's environment: a repository behind its tools.

The repository is data of the episode, so only `test` needs a sandbox, a fresh one each time.
"""

from __future__ import annotations

import asyncio
from typing import Any

from curricula.coding.tools import TEST, answer
from curricula.episodes import ToolEpisode
from engines.types import Episode, Problem, ToolCall
from infra.repositories.files import Files
from infra.sandbox.python import Demand


class CodingEnvironment:
    """Starts episodes of problems whose reference holds `files` and `protected`."""

    def __init__(self, *, max_calls: int, sandbox: Demand) -> None:
        self._max_calls = max_calls
        self._sandbox: Demand = sandbox

    async def start(self, problem: Problem) -> Episode:
        return ToolEpisode(problem, _Repository(problem, self._sandbox), self._max_calls)


class _Repository:
    """The files of one rollout, as its edits leave them."""

    def __init__(self, problem: Problem, sandbox: Demand) -> None:
        self._reference: Any = problem.reference
        self._files: Files = self._reference["files"]
        self._sandbox: Demand = sandbox

    async def answer(self, call: ToolCall) -> str:
        given = (call, self._files, self._reference, self._sandbox)
        if call.name == TEST.name:
            told, self._files = await asyncio.to_thread(answer, *given)
        else:  # takes microseconds: no thread needed
            told, self._files = answer(*given)
        return told
