"""The `agent` curriculum: questions about a small world, answered with tools."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from curricula.procedural import Draft, Family, Procedural, check_choice, check_count
from curricula.worlds import PYTHON, SEARCH, ToolEnvironment, World, draw_world, execute, world_of
from engines.types import Environment, Json, Message, Problem, Tool, ToolCall
from infra.sandbox.python import DEMANDS, Demand, level, require

FIELDS = ("color", "owner")


def look_up(hops: int, *, size: int = 8) -> Callable[[random.Random], Draft]:
    """`color of owner of ant`: follow `hops - 1` owners, then read a fact."""

    def draw(rng: random.Random) -> Draft:
        world = draw_world(rng, size=size, path=hops, has_numbers=False)
        field = rng.choice(FIELDS)
        question = f"{field} of {'owner of ' * (hops - 1)}{world[0].name}"
        calls = [ToolCall("search", {"q": entity.name}) for entity in world[:hops]]
        answer = world[hops - 1].fact(field)
        return _draft(f"hop{hops}", question, world, calls, answer, (SEARCH,))

    return draw


def arithmetic(sign: str, *, size: int = 8) -> Callable[[random.Random], Draft]:
    """`count of ant * count of bad`: look both up, compute with the Python tool."""

    def draw(rng: random.Random) -> Draft:
        world = draw_world(rng, size=size, path=0, has_numbers=True)
        first, second = world[:2]
        question = f"count of {first.name} {sign} count of {second.name}"
        a, b = (int(entity.fact("count")) for entity in (first, second))
        calls = [ToolCall("search", {"q": entity.name}) for entity in (first, second)]
        calls.append(ToolCall("python", {"code": f"print({a}{sign}{b})"}))
        answer = a + b if sign == "+" else a * b
        return _draft("compute", question, world, calls, str(answer), (SEARCH, PYTHON))

    return draw


def plan_of(question: str, world: World) -> tuple[Message, ...]:
    """The calls that answer a question of these families, then its answer."""
    documents = {entity.name: entity for entity in world}
    words = question.split(" ")
    if words[0] == "count":  # count of ant * count of bad
        names, sign = (words[2], words[6]), words[3]
        a, b = (int(documents[name].fact("count")) for name in names)
        last = ToolCall("python", {"code": f"print({a}{sign}{b})"})
        return _plan([*map(_search, names), last], str(a + b if sign == "+" else a * b))
    name, calls = words[-1], list[ToolCall]()
    for _ in range(words.count("owner") - (words[0] == "owner")):
        calls.append(_search(name))
        name = documents[name].fact("owner")
    return _plan([*calls, _search(name)], documents[name].fact(words[0]))


def _search(name: str) -> ToolCall:
    return ToolCall("search", {"q": name})


def _plan(calls: Sequence[ToolCall], answer: str) -> tuple[Message, ...]:
    turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    return (*turns, Message("assistant", answer))


def _draft(
    family: str,
    question: str,
    world: World,
    calls: Sequence[ToolCall],
    answer: str,
    tools: tuple[Tool, ...],
) -> Draft:
    documents: list[Json] = [[entity.name, entity.text] for entity in world]
    needs: list[Json] = [tool.name for tool in tools]
    return Draft(
        family=family,
        prompt=question,
        content=f"{question} {documents}",
        reference={"answer": answer, "needs": needs, "world": documents},
        plan=_plan(calls, answer),
        tools=tools,
    )


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
