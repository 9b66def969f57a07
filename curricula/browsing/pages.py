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

from curricula.vocabulary import LEXICON

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
        """Whether its kind and facts fit this page only."""
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
