"""The `agent` curriculum: questions that only tools can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from curricula.environments import ToolEnvironment, world_of
from curricula.options import check_choice, check_count
from curricula.procedural import Family, Procedural
from curricula.questions import arithmetic, look_up, plan_of
from curricula.tools import execute
from engines.types import Environment, Message, Problem
from infra.sandbox.python import DEMANDS, Demand, level, require


class Agent(Procedural):
    """Levels: easy (one and two look-ups), medium (three), hard (look-ups and the Python tool)."""

    name: ClassVar[str] = "agent"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (look_up(1), look_up(2)),
        "medium": (look_up(3, size=12),),
        "hard": (arithmetic("+"), arithmetic("*")),
    }

    def __init__(
        self,
        *,
        levels: Sequence[str] = ("easy",),
        noise: float = 0.0,
        max_calls: int = 3,
        sandbox: Demand = "confined",
    ) -> None:
        """`sandbox` is what the kernel must offer before the model's programs run: `confined`,
        `full` (every mechanism), or `unsafe`, which runs them also where nothing confines."""
        super().__init__(levels=levels, noise=noise)
        self._max_calls = check_count("max_calls", max_calls)
        check_choice("sandbox", sandbox, DEMANDS)
        self._sandbox: Demand = sandbox

    def environment(self) -> Environment:
        """Raises `InputError` if programs would run without the required confinement."""
        if "hard" in self._levels and self._sandbox != "unsafe":
            require(level(), self._sandbox)
        return ToolEnvironment(max_calls=self._max_calls, sandbox=self._sandbox)

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that answer it."""
        return plan_of(problem.messages[0].content, world_of(problem))

    def secrets(self, problem: Problem) -> Sequence[str]:
        """None: a document that is there to be found shows the answer among others."""
        return ()

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        """Each call is really made, also a mistaken one: the answer is what the tool says to it."""
        world = world_of(problem)
        turns: list[Message] = []
        for turn in plan:
            turns.append(turn)
            turns += [Message("tool", execute(c, world, self._sandbox)) for c in turn.tool_calls]
        return tuple(turns)
