"""The `browsing` curriculum: questions that several pages of a generated web answer together."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from curricula.browsing.pages import Web, web_of
from curricula.browsing.questions import draw_question, needs_its_way
from curricula.browsing.tools import OPEN, SEARCH, TOOLS, execute
from curricula.episodes import ToolEpisode
from curricula.options import check_count
from curricula.procedural import Draft, Family, Procedural
from engines.types import Environment, Episode, Json, Message, Problem, ToolCall

PAGES = 10_000


def _hops(count: int) -> Family:
    def draw(rng: random.Random) -> Draft:
        question = draw_question(web_of(PAGES), rng, count)
        needs: list[Json] = [SEARCH.name, OPEN.name]
        way = [page.title for page in question.way]
        return Draft(
            family=f"hop{count}",
            prompt=question.text,
            content=question.text,
            reference={
                "answer": question.answer,
                "needs": needs,
                "description": question.description,
                "way": list(way),
            },
            plan=_plan(question.description, way, question.answer),
            tools=TOOLS,
            flawed=lambda: _plan(question.description, way[:-1], question.early),
            is_fit=lambda: needs_its_way(web_of(PAGES), question),
        )

    return draw


def _plan(description: str, way: Sequence[str], answer: str) -> tuple[Message, ...]:
    calls = [
        ToolCall(SEARCH.name, {"q": description}),
        *(ToolCall(OPEN.name, {"title": title}) for title in way),
    ]
    turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    return (*turns, Message("assistant", answer))


class Browsing(Procedural):
    """Levels: easy (one link from the described page), medium (two), hard (three or four)."""

    name: ClassVar[str] = "browsing"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (_hops(1),),
        "medium": (_hops(2),),
        "hard": (_hops(3), _hops(4)),
    }

    flaw: ClassVar[str] = "impatient"

    def __init__(
        self,
        *,
        levels: Sequence[str] = ("easy",),
        noise: float = 0.0,
        impatient: float = 0.0,
        max_calls: int = 8,
    ) -> None:
        """`impatient` is the share of demonstrations that answer from the page before the last one
        of the way, so wrongly; `noise` that of demonstrations with one wrong token."""
        super().__init__(levels=levels, noise=noise, flawed=impatient)
        self._max_calls = check_count("max_calls", max_calls)

    def environment(self) -> Environment:
        return BrowsingEnvironment(max_calls=self._max_calls)

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that find the answer."""
        reference: Any = problem.reference
        return _plan(reference["description"], reference["way"], reference["answer"])

    def secrets(self, problem: Problem) -> Sequence[str]:
        """None: pages are there to be read. `needs_its_way` says that no less will do."""
        return ()

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        """Each call is really made, also a mistaken one."""
        turns: list[Message] = []
        for turn in plan:
            turns.append(turn)
            turns += [Message("tool", execute(call, web_of(PAGES))) for call in turn.tool_calls]
        return tuple(turns)


class BrowsingEnvironment:
    """Starts episodes on the one web."""

    def __init__(self, *, max_calls: int) -> None:
        self._max_calls = max_calls

    async def start(self, problem: Problem) -> Episode:
        return ToolEpisode(problem, _Browser(web_of(PAGES)), self._max_calls)


class _Browser:
    def __init__(self, web: Web) -> None:
        self._web = web

    async def answer(self, call: ToolCall) -> str:
        return execute(call, self._web)  # milliseconds: no thread needed
