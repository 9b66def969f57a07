"""A generated web: thousands of pages with facts and links, and a full-text index over them.

A page is about a person, a firm or a town. Its lines are facts (`color red`) and links to other
pages (`friend [ant cab dot]`). One web serves all problems; facts are looked up, not memorised.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from curricula.procedural import Draft, Family, Procedural, check_count
from curricula.vocabulary import LEXICON
from curricula.worlds import ToolEpisode
from engines.types import Environment, Episode, Json, Message, Problem, Tool, ToolCall

LINKS: Mapping[str, Mapping[str, str]] = {
    "person": {"friend": "person", "employer": "firm", "home": "town"},
    "firm": {"owner": "person", "seat": "town"},
    "town": {"twin": "town", "mayor": "person"},
}
"""what a page of a kind links to: the link's name, and the kind of page there"""
FACTS: Mapping[str, tuple[str, ...]] = {
    "person": ("color", "pet", "food"),
    "firm": ("product", "sign", "drink"),
    "town": ("river", "tree", "bird"),
}
KINDS = tuple(LINKS)
SHOWN = 5
"""titles that a search gives"""
NOTHING = "no"
_TERM = re.compile(r"\w+")
SEARCH = Tool("search", "Titles of the pages that fit best.", {"q": "string"}, ("q",))
OPEN = Tool("open", "The page of a title.", {"title": "string"}, ("title",))
FIND = Tool(
    "find",
    "Lines of a page with a text.",
    {"title": "string", "text": "string"},
    ("title", "text"),
)
TOOLS = (SEARCH, OPEN, FIND)
PAGES = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """One page, e.g. `Page("ant cab dot", "person", {"color": "red"}, {"home": "fox gum hen"})`."""

    title: str
    kind: str
    facts: Mapping[str, str]
    links: Mapping[str, str]
    """titles of the pages that they lead to"""

    @property
    def text(self) -> str:
        return f"{self.title}\n{self.body}"

    @property
    def body(self) -> str:
        facts = [f"{name} {value}" for name, value in self.facts.items()]
        links = [f"{name} [{title}]" for name, title in self.links.items()]
        return "\n".join([f"kind {self.kind}", *facts, *links])


class Web:
    """The pages by title, and what a search finds among them."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages, self.listed = pages, list(pages.values())
        self._facts = Counter(map(_facts_of, self.listed))
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute("CREATE VIRTUAL TABLE pages USING fts5(title, body)")
        rows = [(page.title, page.body) for page in pages.values()]
        self._index.executemany("INSERT INTO pages VALUES (?, ?)", rows)

    def search(self, query: str) -> list[str]:
        """Titles of the best pages by BM25: those with two words of the query in a row, then those
        with any of its words."""
        words = _TERM.findall(query)
        titles = self._found([f"{one} {other}" for one, other in itertools.pairwise(words)])
        if len(titles) < SHOWN:
            titles = list(dict.fromkeys([*titles, *self._found(words)]))
        return titles[:SHOWN]

    def _found(self, phrases: Sequence[str]) -> list[str]:
        if not phrases:
            return []
        match = " OR ".join(f'"{phrase}"' for phrase in dict.fromkeys(phrases))
        asked = "SELECT title FROM pages WHERE pages MATCH ? ORDER BY rank, rowid LIMIT ?"
        with self._lock:
            return [title for (title,) in self._index.execute(asked, (match, SHOWN))]

    def is_described(self, page: Page) -> bool:
        """Return whether its kind and facts fit this page only."""
        return self._facts[_facts_of(page)] == 1


@functools.cache
def web_of(size: int) -> Web:
    """The web of `size` pages, always the same one."""
    rng = random.Random(f"web/{size}")
    titles: dict[str, None] = {}
    while len(titles) < size:
        titles[" ".join(rng.sample(LEXICON, 3))] = None
    kinds = {title: KINDS[number % len(KINDS)] for number, title in enumerate(titles)}
    by_kind = {kind: [t for t, k in kinds.items() if k == kind] for kind in KINDS}
    return Web({title: _page(title, kind, by_kind, rng) for title, kind in kinds.items()})


def _page(title: str, kind: str, by_kind: Mapping[str, list[str]], rng: random.Random) -> Page:
    links: dict[str, str] = {}
    for name, to in LINKS[kind].items():
        links[name] = rng.choice([t for t in rng.sample(by_kind[to], 2) if t != title])
    return Page(title, kind, {name: rng.choice(LEXICON) for name in FACTS[kind]}, links)


def _facts_of(page: Page) -> tuple[str, ...]:
    return (page.kind, *page.facts.values())


@dataclass(frozen=True, slots=True)
class Question:
    """`color of friend of person with color red, pet cat, food egg`, and the way to its answer."""

    text: str
    description: str
    """of the first page, as a search would ask for it"""
    way: tuple[Page, ...]
    """the pages from the described one to the one with the answer"""
    answer: str
    early: str
    """what somebody answers who opens one page less"""


def draw_question(web: Web, rng: random.Random, hops: int) -> Question:
    """One whose answer is `hops` links away from the page that it describes. `needs_its_way` may be
    false of it."""
    way = [rng.choice(web.listed)]
    names: list[str] = []
    for _ in range(hops):
        name = rng.choice(list(way[-1].links))
        names.append(name)
        way.append(web.pages[way[-1].links[name]])
    first, last = way[0], way[-1]
    asked = rng.choice(list(last.facts))
    facts = ", ".join(f"{name} {value}" for name, value in first.facts.items())
    description = f"{first.kind} with {facts}"
    path = "".join(f"{name} of " for name in reversed(names))
    before = way[-2].facts
    return Question(
        text=f"{asked} of {path}{description}",
        description=description,
        way=tuple(way),
        answer=last.facts[asked],
        early=before.get(asked, next(iter(before.values()))),
    )


def needs_its_way(web: Web, question: Question) -> bool:
    """Return whether it can be answered by reading every page of its way, and by nothing less: the
    description fits one page only; the answer is on no earlier page of the way, and on no page
    that a search for the question, or for its description, shows."""
    first, *_ = question.way
    if not web.is_described(first):
        return False
    if len({page.title for page in question.way}) < len(question.way):
        return False
    seen = {page.title for page in question.way[:-1]}
    seen |= set(web.search(question.text)) | set(web.search(question.description))
    if question.way[-1].title in seen or first.title not in web.search(question.description):
        return False
    return not any(question.answer in web.pages[title].text.split() for title in seen)


def execute(call: ToolCall, web: Web) -> str:
    """Return what the tool answers to a checked call; `no` where there is nothing."""
    if call.name == SEARCH.name:
        return "\n".join(web.search(str(call.arguments["q"]))) or NOTHING
    page = web.pages.get(str(call.arguments["title"]))
    if page is None:
        return NOTHING
    if call.name == OPEN.name:
        return page.text
    wanted = str(call.arguments["text"])
    return "\n".join(line for line in page.text.splitlines() if wanted in line) or NOTHING


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
        super().__init__(levels=levels, noise=noise)
        self.set_flawed(impatient)
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
