"""The `functions` curriculum: calls of generated APIs, whose held-out ones are never trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from curricula.episodes import ToolEpisode
from curricula.functions.tasks import (
    dialogue,
    history,
    next_call,
    right_turns,
    said,
)
from curricula.options import check_count
from curricula.procedural import Draft, Family, Procedural
from curricula.tools import check_call
from engines.types import (
    AssistantTurn,
    Environment,
    Episode,
    Message,
    Problem,
    Split,
    Step,
    ToolCall,
)
from infra.back_ends.back_end import BackEnd
from infra.back_ends.calls import Call
from infra.back_ends.task import task_of


class Functions(Procedural):
    """Levels: easy (the next call of a dialogue), medium (the whole dialogue)."""

    name: ClassVar[str] = "functions"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (next_call,),
        "medium": (dialogue,),
    }
    flaw: ClassVar[str] = "obliging"

    def __init__(
        self,
        *,
        levels: Sequence[str] = ("easy",),
        noise: float = 0.0,
        obliging: float = 0.0,
        max_calls: int = 6,
    ) -> None:
        """`obliging`: the share of demonstrated dialogues that do what the user wants, also where a
        policy wants it refused; `noise`: of demonstrations with one wrong token."""
        super().__init__(levels=levels, noise=noise, flawed=obliging)
        self._max_calls = check_count("max_calls", max_calls)

    def environment(self) -> Environment:
        return FunctionsEnvironment(max_calls=self._max_calls)

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that lead to the wanted state, or the one next call."""
        reference: Any = problem.reference
        if "before" in reference:
            return (said(_back_end(reference).valid_calls()[0]),)
        return right_turns(task_of(reference["task"]))

    def secrets(self, problem: Problem) -> Sequence[str]:
        """None: what the user and the back end know is there to be asked for."""
        return ()

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        """Each call of a whole dialogue is really made, also a mistaken one."""
        reference: Any = problem.reference
        if "before" in reference:
            return tuple(plan)
        back_end, turns = _back_end(reference), list[Message]()
        for turn in plan:
            turns.append(turn)
            turns += [Message("tool", _answer(back_end, call)) for call in turn.tool_calls]
        return tuple(turns)

    def _problem(self, draft: Draft, split: Split, seed: int, position: int) -> Problem:
        problem = super()._problem(draft, split, seed, position)
        return replace(problem, messages=(*problem.messages, *history(problem.reference)))


class FunctionsEnvironment:
    """Starts episodes of problems whose reference holds a `task`, and `before` where only the next
    call is asked for."""

    def __init__(self, *, max_calls: int) -> None:
        self._max_calls = max_calls

    async def start(self, problem: Problem) -> Episode:
        reference: Any = problem.reference
        if "before" in reference:
            return _OneTurn(problem)
        return ToolEpisode(problem, _Functions(_back_end(reference)), self._max_calls)


class _Functions:
    def __init__(self, back_end: BackEnd) -> None:
        self._back_end = back_end

    async def answer(self, call: ToolCall) -> str:
        return _answer(self._back_end, call)  # microseconds: no thread needed


class _OneTurn:
    """Over after the first turn, whose calls are checked and not made."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    async def step(self, turn: AssistantTurn) -> Step:
        for call in turn.tool_calls:
            check_call(call, self._problem.tools)
        return Step(done=True)

    async def close(self) -> None:
        """Nothing is held."""


def _back_end(reference: Any) -> BackEnd:
    """As it is when the problem begins."""
    back_end = BackEnd(task_of(reference["task"]))
    for name, arguments in reference.get("before", []):
        back_end.answer(Call(name, arguments))
    return back_end


def _answer(back_end: BackEnd, call: ToolCall) -> str:
    return back_end.answer(Call(call.name, call.arguments))
