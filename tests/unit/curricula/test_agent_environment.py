"""The agent's tools and episodes."""

from __future__ import annotations

import pytest

from curricula import agent as agent_module
from curricula.built_in_curricula import build
from curricula.worlds import Entity, search
from engines.types import AssistantTurn, ProtocolBreak, ToolCall
from infra.errors import InputError
from infra.sandbox.python import MECHANISMS, Level

pytestmark = pytest.mark.unit

WORLD = (Entity("ant", "color red owner cat"), Entity("cat", "owner ant color big"))


def _turn(*calls: ToolCall, content: str = "") -> AssistantTurn:
    return AssistantTurn(content, content, None, calls)


async def _episode(**options):
    curriculum = build("agent", options)
    (problem,) = curriculum.problems("rl", 1, seed=0)
    environment = curriculum.environment()
    assert environment is not None
    return problem, await environment.start(problem)


def test_search_prefers_the_document_about_a_name_to_one_that_mentions_it():
    assert search(WORLD, "ant") == "color red owner cat"
    assert search(WORLD, "cat") == "owner ant color big"
    assert search(WORLD, "red") == "color red owner cat"


@pytest.mark.parametrize("query", ["", "  ", "dog", '"', "ant*", 'a" OR "b', "NEAR(", "title:ant)"])
def test_search_never_fails_whatever_the_query(query):
    assert isinstance(search(WORLD, query), str)


def test_search_keeps_worlds_apart_when_indexes_are_recycled():
    worlds = [(Entity("ant", f"color c{number}"),) for number in range(200)]
    for _ in range(2):
        for number, world in enumerate(worlds):
            assert search(world, "ant") == f"color c{number}"


async def test_an_episode_answers_calls_and_ends_with_the_answer():
    problem, episode = await _episode()
    name, text = problem.reference["world"][0]
    step = await episode.step(_turn(ToolCall("search", {"q": name})))
    assert [m.role for m in step.messages] == ["tool"]
    assert step.messages[0].content == text
    assert not step.done
    assert (await episode.step(_turn(content="red"))).done
    await episode.close()


async def test_an_episode_ends_at_the_first_call_beyond_its_budget():
    _, episode = await _episode(max_calls=2)
    call = ToolCall("search", {"q": "ant"})
    assert not (await episode.step(_turn(call, call))).done
    step = await episode.step(_turn(call))
    assert step.done
    assert not step.messages


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall("find", {"q": "ant"}), "not offered"),
        (ToolCall("python", {"code": "print(1)"}), "not offered"),
        (ToolCall("search", {}), "without 'q'"),
        (ToolCall("search", {"q": "ant", "k": 3}), "unknown argument 'k'"),
        (ToolCall("search", {"q": 3}), "not of type string"),
        (ToolCall("search", {"q": True}), "not of type string"),
    ],
)
async def test_a_call_against_the_protocol_breaks_the_episode(call, reason):
    _, episode = await _episode()
    with pytest.raises(ProtocolBreak, match=reason):
        await episode.step(_turn(call))


def test_easy_problems_offer_search_alone_and_hard_ones_python_too():
    (easy,) = build("agent").problems("rl", 1, seed=0)
    (hard,) = build("agent", {"levels": ["hard"]}).problems("rl", 1, seed=0)
    assert [tool.name for tool in easy.tools] == ["search"]
    assert [tool.name for tool in hard.tools] == ["search", "python"]


def test_programs_are_refused_at_the_start_where_nothing_confines_them(monkeypatch):
    monkeypatch.setattr(agent_module, "level", lambda: Level(("seccomp",)))
    with pytest.raises(InputError, match="sandbox: unsafe"):
        build("agent", {"levels": ["hard"]}).environment()
    assert build("agent", {"levels": ["hard"], "sandbox": "unsafe"}).environment()
    assert build("agent").environment()


def test_a_recipe_can_demand_the_full_sandbox(monkeypatch):
    full = {"levels": ["hard"], "sandbox": "full"}
    monkeypatch.setattr(agent_module, "level", lambda: Level(("landlock", "seccomp")))
    assert build("agent", {"levels": ["hard"]}).environment()
    with pytest.raises(InputError, match=r"`sandbox: full` is required.*landlock \+ seccomp only"):
        build("agent", full).environment()
    monkeypatch.setattr(agent_module, "level", lambda: Level(MECHANISMS))
    assert build("agent", full).environment()
