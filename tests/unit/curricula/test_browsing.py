"""The browsing curriculum: a web of pages, and questions that need several of them."""

from __future__ import annotations

import random

import pytest

from curricula.browsing import (
    LINKS,
    Page,
    Question,
    Web,
    draw_question,
    execute,
    needs_its_way,
    web_of,
)
from curricula.built_in_curricula import build
from engines.types import AssistantTurn, Message, Status, ToolCall, Transcript
from rewards.built_in_rewards import build as build_reward

pytestmark = pytest.mark.unit
SMALL = 600


def _fit_question(web: Web, seed: int, hops: int) -> Question:
    rng = random.Random(seed)
    drawn = (draw_question(web, rng, hops) for _ in range(1_000))
    return next(question for question in drawn if needs_its_way(web, question))


def test_a_web_is_whole_and_always_the_same() -> None:
    web = web_of(SMALL)
    assert len(web.pages) == SMALL
    for page in web.listed:
        assert set(page.links) == set(LINKS[page.kind])
        for name, title in page.links.items():
            assert web.pages[title].kind == LINKS[page.kind][name]
            assert title != page.title
    again = web_of.__wrapped__(SMALL)
    assert [page.text for page in again.listed] == [page.text for page in web.listed]


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_a_question_is_answered_by_its_way_and_by_nothing_less(hops: int) -> None:
    web = web_of(SMALL)
    for seed in range(10):
        question = _fit_question(web, seed, hops)
        assert len(question.way) == hops + 1
        assert question.way[0].title in web.search(question.description)
        for page, link in zip(question.way, question.way[1:], strict=False):
            assert link.title in page.links.values()
            assert question.answer not in page.text.split()
        for title in web.search(question.text):
            assert question.answer not in web.pages[title].text.split()
        assert question.answer in question.way[-1].facts.values()
        assert not any(page.title in question.text for page in question.way)


def test_questions_with_a_shorter_way_are_found_out() -> None:
    def town(title: str, bird: str, twin: str) -> Page:
        facts = {"river": "fox", "tree": "fig", "bird": bird}
        return Page(title, "town", facts, {"twin": twin, "mayor": "dad"})

    pages = [town("one", "hen", "two"), town("two", "cat", "one"), town("ten", "hen", "two")]
    web = Web({page.title: page for page in pages})
    drawn = [draw_question(web_of(SMALL), random.Random(seed), 1) for seed in range(30)]
    assert len({needs_its_way(web_of(SMALL), question) for question in drawn}) == 2
    assert not web.is_described(pages[0])  # the third has the same facts
    assert web.is_described(pages[1])


def test_tools_show_titles_pages_and_lines() -> None:
    web = web_of(SMALL)
    page = web.listed[0]
    told = execute(ToolCall("search", {"q": " ".join(page.facts.values())}), web)
    assert len(told.splitlines()) == 5
    assert execute(ToolCall("open", {"title": page.title}), web) == page.text
    link = next(iter(page.links))
    line = f"{link} [{page.links[link]}]"
    assert execute(ToolCall("find", {"title": page.title, "text": link}), web) == line
    for call in (
        ToolCall("open", {"title": "absent"}),
        ToolCall("search", {"q": '"*'}),
        ToolCall("find", {"title": page.title, "text": "zzz"}),
    ):
        assert execute(call, web) == "no"


async def test_demonstrations_are_right_and_guesses_without_tools_are_not() -> None:
    curriculum, reward = build("browsing", {"levels": ["hard"]}), build_reward("agent-answer")
    for shown in curriculum.demonstrations(2, seed=0):
        transcript = Transcript(shown.problem, shown.turns, Status.COMPLETED, 9)
        assert (await reward(transcript)).score == 1.0
        guess = Transcript(shown.problem, shown.turns[-1:], Status.COMPLETED, 1)
        assert (await reward(guess)).score == 0.0
        once = (*shown.turns[:2], Message("assistant", shown.turns[-1].content))
        assert (await reward(Transcript(shown.problem, once, Status.COMPLETED, 1))).score == 0.0
    environment = curriculum.environment()
    assert environment is not None
    episode = await environment.start(shown.problem)
    call = ToolCall("open", {"title": "absent"})
    step = await episode.step(AssistantTurn("", "", None, (call,)))
    assert step.messages[0].content == "no"


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
async def test_an_impatient_demonstrator_opens_one_page_less_and_is_wrong(level: str) -> None:
    reward = build_reward("agent-answer", {})
    patient = build("browsing", {"levels": [level]}).demonstrations(12, 0)
    impatient = build("browsing", {"levels": [level], "impatient": 1.0}).demonstrations(12, 0)
    for right, early in zip(patient, impatient, strict=True):
        assert right.problem == early.problem
        opened = [[c for t in shown.turns for c in t.tool_calls] for shown in (right, early)]
        assert opened[1] == opened[0][:-1]
        ended = [
            Transcript(one.problem, one.turns, Status.COMPLETED, len(one.turns))
            for one in (right, early)
        ]
        scores = [(await reward(transcript)).score for transcript in ended]
        assert scores == [1.0, 0.0]
    some = build("browsing", {"levels": [level], "impatient": 0.6}).demonstrations(60, 0)
    short = [shown.turns[-1].content != shown.problem.reference["answer"] for shown in some]
    assert 24 < sum(short) < 48


def test_a_search_finds_the_described_page_first() -> None:
    web = web_of(SMALL)
    drawn = [_fit_question(web, seed, 1) for seed in range(40)]
    found = [web.search(question.description)[0] == question.way[0].title for question in drawn]
    assert sum(found) >= 39
    (page, *_) = web.listed
    fact, value = next(iter(page.facts.items()))
    assert all(value in web.pages[title].text.split() for title in web.search(value))
    assert f"{fact} {value}" in web.pages[web.search(f"{fact} {value}")[0]].text
    assert web.search("") == web.search("?") == []
