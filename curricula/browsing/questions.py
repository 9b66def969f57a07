"""Questions that only several pages in a row answer: no page is named, the first is described."""

from __future__ import annotations

import random
from dataclasses import dataclass

from curricula.browsing.pages import Page, Web


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
    """Whether it can be answered by reading every page of its way, and by nothing less: the
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
