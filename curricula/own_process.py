"""An environment that runs in a process of its own, with a time limit: every one not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.types import AssistantTurn, Episode, Problem, ProtocolBreak, Step
from infra.processes.part_process import PartFailed, PartProcess, PartRaised

BUILD = "curricula.registry:build_environment"
_BREAK = f"{ProtocolBreak.__module__}.{ProtocolBreak.__qualname__}"


class ProcessEnvironment:
    """Starts episodes in the environment of a user's curriculum, behind a `PartProcess`."""

    def __init__(self, curriculum: str, options: Mapping[str, Any], timeout_s: float) -> None:
        """`timeout_s`: what the start of an episode may take, and each of its steps."""
        name, given = f"environment of {curriculum!r}", (curriculum, dict(options))
        self.process = PartProcess(name, BUILD, given, timeout_s)

    async def start(self, problem: Problem) -> Episode:
        """Raises PartFailed."""
        number = await self.process.call("start", problem, about=problem.id, keeps=True)
        return ProcessEpisode(self.process, number, problem.id)


class ProcessEpisode:
    """One rollout of it. It is lost with its process."""

    def __init__(self, process: PartProcess, number: int, about: str) -> None:
        self._process, self._number, self._about = process, number, about

    async def step(self, turn: AssistantTurn) -> Step:
        """Raises PartFailed, ProtocolBreak."""
        try:
            step = await self._process.call("step", turn, about=self._about, target=self._number)
        except PartRaised as error:
            if _BREAK in error.types:
                raise ProtocolBreak(error.text) from None
            raise
        if not isinstance(step, Step):
            raise PartFailed(f"answered {type(step).__name__}, not a Step")
        return step

    async def close(self) -> None:
        await self._process.call("close", about=self._about, target=self._number)
