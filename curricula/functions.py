"""Generated APIs: over a million, each with its own names and limits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any, ClassVar

from curricula.procedural import Draft, Family, Procedural, check_count
from curricula.vocabulary import LEXICON, NAMES
from curricula.worlds import ToolEpisode, check_call
from engines.types import (
    AssistantTurn,
    Environment,
    Episode,
    Message,
    Problem,
    Split,
    Step,
    Tool,
    ToolCall,
)
from infra.back_ends import ASK, DAYS, REFUSE, Api, BackEnd, Call, Task, solved, task_of
from infra.json_text import ParameterKind

LOOKS = ("view", "show", "load", "find")
CHANGES = ("book", "pay", "rent", "ship", "lend", "sell", "rate", "post", "send", "fund")
DELETES = ("drop", "void", "erase", "close")
LATE = ("late", "old", "past")
KEPT = ("kept", "stay", "held")
THINGS = 3
MOST_AMOUNT = 20
ANSWER = "done"


def draw_api(rng: random.Random) -> Api:
    noun, field = rng.sample(LEXICON, 2)
    return Api(
        noun=noun,
        look=rng.choice(LOOKS),
        change=rng.choice(CHANGES),
        delete=rng.choice(DELETES),
        field=field,
        limit=rng.randint(2, 9),
        unit=rng.choice(list(DAYS)),
        late=rng.choice(LATE),
        kept=rng.choice(KEPT),
    )


def policies(api: Api) -> str:
    """Return what the caller must keep to."""
    return (
        f"{api.look} first. {ASK} {api.field}. {api.change} up to {api.limit} {api.unit}, "
        f"else {REFUSE} {api.late}. {ASK} {api.delete}, if no {REFUSE} {api.kept}."
    )


def tools_of(api: Api) -> tuple[Tool, ...]:
    one: dict[str, ParameterKind] = {"name": "string", "user": "string"}
    change: dict[str, ParameterKind] = {**one, api.field: "number"}
    ask: dict[str, ParameterKind] = {"about": "string", "user": "string"}
    refuse: dict[str, ParameterKind] = {**one, "why": "string"}
    changes = api.function(api.change)
    return (
        Tool(api.function(api.look), "Its age.", one, tuple(one)),
        Tool(changes, "Change it.", {**change, "fast": "boolean"}, tuple(change)),
        Tool(api.function(api.delete), "Delete it.", one, tuple(one)),
        Tool(ASK, "Ask the user.", ask, tuple(ask)),
        Tool(REFUSE, "Refuse it.", refuse, tuple(refuse)),
    )


def draw_task(rng: random.Random) -> Task:
    """Half of the changes come too late, and half of the deletions are not agreed to."""
    api = draw_api(rng)
    free = [name for name in NAMES if name not in (api.noun, api.field)]
    user, *names = rng.sample(free, THINGS + 1)
    target, is_late = names[0], rng.random() < 0.5
    ages = {name: rng.randint(0, 2 * api.most_days) for name in sorted(names)}
    low, high = (1, api.most_days) if is_late else (-api.most_days, 0)
    ages[target] = api.most_days + rng.randint(low, high)
    return Task(
        api=api,
        user=user,
        target=target,
        goal=rng.choice(("change", "delete")),
        ages=ages,
        amount=rng.randint(1, MOST_AMOUNT),
        agrees=rng.random() < 0.5,
    )


def dialogue(rng: random.Random) -> Draft:
    """Solved by bringing the back end into the wanted state."""
    task = draw_task(rng)
    draft = _draft("dialogue", task, {}, right_turns(task))
    return replace(draft, flawed=partial(_obliging, task))


def next_call(rng: random.Random) -> Draft:
    """Solved by any valid next call after a dialogue that has come some way."""
    task = draw_task(rng)
    back_end, before = BackEnd(task), list[Call]()
    for _ in range(rng.randrange(len(solved(task)[0]))):
        before.append(rng.choice(back_end.valid_calls()))
        back_end.answer(before[-1])
    reference = {"before": [[call.name, dict(call.arguments)] for call in before]}
    valid = rng.choice(back_end.valid_calls())
    return _draft("next-call", task, reference, (said(valid),))


def _obliging(task: Task) -> tuple[Message, ...]:
    """The turns of somebody who does what the user wants, whether the policies allow it or not."""
    allowed = replace(task, ages={**task.ages, task.target: task.api.most_days}, agrees=True)
    return right_turns(allowed)


def right_turns(task: Task) -> tuple[Message, ...]:
    """The assistant's turns of the shortest way, with the last word."""
    calls, _ = solved(task)
    return (*map(said, calls), Message("assistant", ANSWER))


def said(call: Call) -> Message:
    """The assistant's turn that makes a call."""
    return Message("assistant", "", tool_calls=(ToolCall(call.name, dict(call.arguments)),))


def history(reference: Any) -> tuple[Message, ...]:
    """The turns that were made before the problem, each with its answer."""
    back_end = BackEnd(task_of(reference["task"]))
    turns: list[Message] = []
    for name, arguments in reference.get("before", []):
        call = Call(name, arguments)
        turns += [said(call), Message("tool", back_end.answer(call))]
    return tuple(turns)


def _draft(family: str, task: Task, more: dict[str, Any], plan: tuple[Message, ...]) -> Draft:
    api = task.api
    verb = api.change if task.goal == "change" else api.delete
    return Draft(
        family=family,
        prompt=f"{task.user}: {verb} {api.noun} {task.target}\n{policies(api)}",
        content=" ".join(map(str, astuple(api))),
        reference={"task": task.written(), **more},
        plan=plan,
        tools=tools_of(api),
    )


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
        super().__init__(levels=levels, noise=noise)
        self.set_flawed(obliging)
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
    """Return it as it is when the problem begins."""
    back_end = BackEnd(task_of(reference["task"]))
    for name, arguments in reference.get("before", []):
        back_end.answer(Call(name, arguments))
    return back_end


def _answer(back_end: BackEnd, call: ToolCall) -> str:
    return back_end.answer(Call(call.name, call.arguments))
