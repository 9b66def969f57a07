"""The environment of a domain of your own: what plays the tool."""

from __future__ import annotations

from typing import Any

from curricula.worlds import check_call
from engines.types import AssistantTurn, Message, Problem, Step, ToolCall

# 1. Your task


def answer_call(problem: Problem, call: ToolCall) -> str:
    """Return what the tool says to a call that has the right form."""
    known: Any = problem.reference
    return str(known["stock"]) if call.arguments["item"] == known["item"] else "unknown"


# 2. How a rollout plays it


class MyEpisode:
    """One rollout: a turn with calls gets the tool's answers, a turn without them is the last."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    async def step(self, turn: AssistantTurn) -> Step:
        for call in turn.tool_calls:
            check_call(call, self._problem.tools)  # else the rollout is malformed: reward 0
        answers = [Message("tool", answer_call(self._problem, call)) for call in turn.tool_calls]
        return Step(tuple(answers), done=not answers)

    async def close(self) -> None:
        """Nothing is held open."""


class MyEnvironment:
    """Plays the tool. `domain.max_turns` in the recipe bounds the assistant's turns."""

    async def start(self, problem: Problem) -> MyEpisode:
        return MyEpisode(problem)
