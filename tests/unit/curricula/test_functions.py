"""The functions curriculum: generated APIs with policies, judged by carrying calls out."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from curricula.built_in_curricula import build
from engines.types import (
    AssistantTurn,
    Json,
    Message,
    Problem,
    ProtocolBreak,
    Split,
    Status,
    ToolCall,
    Transcript,
    Verdict,
)
from infra.back_ends import OPTIONAL, Api, BackEnd, Call, Task, is_same_call, solved, task_of
from rewards.built_in_rewards import build as build_reward
from rewards.rubric import Rubric, Term, turns_fault
from tasks.admit.admission import admit

pytestmark = pytest.mark.unit
API = Api("tin", "view", "pay", "drop", "cup", 1, "weeks", "late", "kept")
PAY = Task(API, "pet", "ant", "change", {"ant": 7, "cow": 3}, 5, agrees=False)
LATE = replace(PAY, ages={"ant": 8, "cow": 3})
DROP = replace(PAY, goal="delete", agrees=True)
KEEP = replace(PAY, goal="delete")
ON_ANT: dict[str, Json] = {"name": "ant", "user": "pet"}
VIEW = ToolCall("view_tin", ON_ANT)
ASK_CUP = ToolCall("ask", {"about": "cup", "user": "pet"})
ASK_DROP = ToolCall("ask", {"about": "drop", "user": "pet"})
PAY_5 = ToolCall("pay_tin", {**ON_ANT, "cup": 5})
DROP_ANT = ToolCall("drop_tin", ON_ANT)
TOO_LATE = ToolCall("refuse", {**ON_ANT, "why": "late"})
KEPT = ToolCall("refuse", {**ON_ANT, "why": "kept"})
SPLITS: tuple[Split, ...] = ("sft", "rl", "distill", "heldout")


async def _verdict(
    task: Task, *calls: ToolCall, answer: str | None = "done", before: Any = None
) -> Verdict:
    reference: Any = {"task": task.written()}
    if before is not None:
        reference["before"] = [[call.name, call.arguments] for call in before]
    problem = Problem("x", "functions", (Message("user", ""),), reference)
    turns = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    if answer is not None:
        turns.append(Message("assistant", answer))
    transcript = Transcript(problem, tuple(turns), Status.COMPLETED, 1)
    verdict = await build_reward("function-calls")(transcript)
    assert not turns_fault(verdict, transcript)
    return verdict


@pytest.mark.parametrize(
    ("task", "calls"),
    [
        (PAY, [VIEW, ASK_CUP, PAY_5]),
        (PAY, [ASK_CUP, VIEW, PAY_5]),
        (LATE, [VIEW, TOO_LATE]),
        (LATE, [ASK_CUP, VIEW, TOO_LATE]),
        (DROP, [VIEW, ASK_DROP, DROP_ANT]),
        (KEEP, [VIEW, ASK_DROP, KEPT]),
    ],
)
async def test_each_goal_is_reached_and_each_turn_on_the_way_earns_its_share(
    task: Task, calls: list[ToolCall]
) -> None:
    verdict = await _verdict(task, *calls)
    assert (verdict.score, verdict.reason) == (1.0, "")
    assert verdict.turns == [pytest.approx(1 / len(calls))] * len(calls) + [0.0]


async def test_a_look_elsewhere_is_allowed_and_earns_nothing() -> None:
    elsewhere = ToolCall("view_tin", {"name": "cow", "user": "pet"})
    verdict = await _verdict(LATE, elsewhere, VIEW, TOO_LATE)
    assert (verdict.score, verdict.turns) == (1.0, [0.0, 0.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"a": 3, "b": "x"}, {"b": "x", "a": 3}, True),
        ({"a": 3}, {"a": 3.0}, True),
        ({"a": 3}, {"a": "3"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 3}, {"a": 3, "fast": False}, True),
        ({"a": 3}, {"a": 3, "fast": True}, False),
        ({"a": 3}, {"a": 3, "fast": 0}, False),
        ({"a": {"x": [1, 2], "y": None}}, {"a": {"y": None, "x": [1.0, 2]}}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": 3}, {"a": 3, "c": None}, False),
    ],
)
def test_calls_are_the_same_whatever_their_spelling(first: Any, second: Any, same: bool) -> None:
    assert is_same_call(Call("f", first), Call("f", second), OPTIONAL) is same
    assert is_same_call(Call("f", second), Call("f", first), OPTIONAL) is same
    assert not is_same_call(Call("f", first), Call("g", first), OPTIONAL)


@pytest.mark.parametrize(
    ("before", "valid", "wrong"),
    [
        ([], [VIEW, ASK_CUP], [PAY_5, ASK_DROP, TOO_LATE, DROP_ANT]),
        ([VIEW], [ASK_CUP], [VIEW, PAY_5, TOO_LATE]),
        ([VIEW, ASK_CUP], [PAY_5], [VIEW, ASK_CUP, TOO_LATE, KEPT]),
    ],
)
async def test_the_next_call_is_any_valid_one(
    before: list[ToolCall], valid: list[ToolCall], wrong: list[ToolCall]
) -> None:
    for call in valid:
        assert (await _verdict(PAY, call, answer=None, before=before)).score == 1.0
        assert (await _verdict(PAY, call, call, answer=None, before=before)).score == 0.0
    for call in wrong:
        assert (await _verdict(PAY, call, answer=None, before=before)).score == 0.0


async def test_the_next_call_may_spell_out_a_default() -> None:
    spelled = ToolCall("pay_tin", {"fast": False, "cup": 5.0, "user": "pet", "name": "ant"})
    other = ToolCall("pay_tin", {**ON_ANT, "cup": 5, "fast": True})
    before = [VIEW, ASK_CUP]
    assert (await _verdict(PAY, spelled, answer=None, before=before)).score == 1.0
    assert (await _verdict(PAY, other, answer=None, before=before)).score == 0.0


EVERYTHING = (VIEW, ASK_CUP, ASK_DROP, PAY_5, DROP_ANT, TOO_LATE, KEPT)


@pytest.mark.parametrize("task", [PAY, LATE, DROP, KEEP])
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((), id="success is stated without a call"),
        pytest.param(EVERYTHING, id="every function is called"),
        pytest.param((VIEW, ASK_CUP, ASK_DROP), id="all is read and nothing is done"),
        pytest.param((PAY_5,), id="changed unseen"),
        pytest.param((DROP_ANT,), id="deleted unseen"),
        pytest.param((TOO_LATE,), id="refused unseen"),
        pytest.param((VIEW, KEPT), id="refused without asking"),
        pytest.param((VIEW, PAY_5), id="the amount is guessed"),
        pytest.param((VIEW, DROP_ANT), id="deleted without asking"),
        pytest.param((VIEW, ASK_CUP, PAY_5, PAY_5), id="changed twice"),
        pytest.param((VIEW, ASK_DROP, DROP_ANT, KEPT), id="deleted and refused"),
        pytest.param((VIEW, TOO_LATE, ASK_CUP, PAY_5), id="gives way when the user insists"),
        pytest.param((VIEW, ASK_DROP, KEPT, DROP_ANT), id="deletes when the user insists"),
    ],
)
async def test_hacks_earn_nothing(task: Task, calls: tuple[ToolCall, ...]) -> None:
    verdict = await _verdict(task, *calls)
    assert (verdict.score, list(verdict.turns)) == (0.0, [])


@pytest.mark.parametrize(
    "name_and_user", [{"name": "cow", "user": "pet"}, {"name": "ant", "user": "cow"}]
)
async def test_other_things_and_other_users_do_not_count(name_and_user: dict[str, Json]) -> None:
    other = ToolCall("pay_tin", {**name_and_user, "cup": 5})
    assert (await _verdict(PAY, VIEW, ASK_CUP, other)).score == 0.0
    on_cow = [ToolCall("view_tin", {"name": "cow", "user": "pet"}), other]
    if name_and_user["name"] == "cow":
        assert (await _verdict(PAY, VIEW, ASK_CUP, PAY_5, *on_cow)).score == 0.0


async def test_without_a_last_word_nothing_is_earned() -> None:
    assert (await _verdict(PAY, VIEW, ASK_CUP, PAY_5, answer=None)).reason == "no final answer"


def test_the_back_end_tells_only_who_asks_and_says_the_same_again() -> None:
    for _ in range(2):
        back_end = BackEnd(LATE)
        told = [
            back_end.answer(Call(call.name, call.arguments))
            for call in (VIEW, ASK_CUP, ASK_DROP, TOO_LATE)
        ]
        assert told == ["8 days", "5", "no", "do it anyway"]
        stranger = {"name": "ant", "user": "cow"}
        assert back_end.answer(Call("view_tin", stranger)) == "no"
        assert back_end.broken == []
    assert solved(LATE)[1]["refused"] == [["ant", "late"]]


def _api(problem: Problem) -> tuple[Any, ...]:
    reference: Any = problem.reference
    return astuple(task_of(reference["task"]).api)


def test_no_api_is_in_two_splits_and_held_out_ones_are_hundreds() -> None:
    curriculum = build("functions", {"levels": ["easy", "medium"]})
    apis = {split: set(map(_api, curriculum.problems(split, 300, seed=1))) for split in SPLITS}
    assert len(apis["heldout"]) == 300
    for one in SPLITS:
        assert len(apis[one]) > 250
        assert not any(apis[one] & apis[other] for other in SPLITS if other != one)


@pytest.mark.parametrize("level", ["easy", "medium"])
async def test_problems_are_admitted(level: str) -> None:
    curriculum = build("functions", {"levels": [level]})
    judge = Rubric([Term("calls", 1.0, True, build_reward("function-calls"))])
    problems = curriculum.problems("rl", 100, seed=0)
    found = await admit(curriculum, curriculum.environment(), judge, problems)
    assert [finding.reasons for finding in found] == [[]] * 100


class _Broken:
    """The curriculum with one problem's solution replaced."""

    def __init__(self, turns: list[Message]) -> None:
        self._real, self._turns = build("functions", {"levels": ["medium"]}), turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def solution(self, problem: Problem) -> list[Message]:
        return self._turns

    def secrets(self, problem: Problem) -> list[str]:
        return []


async def test_planted_bad_problems_are_refused() -> None:
    real: Any = build("functions", {"levels": ["medium"]})
    judge = Rubric([Term("calls", 1.0, True, build_reward("function-calls"))])
    problem, other = real.problems("rl", 2, seed=0)
    missing = replace(problem, tools=problem.tools[-1:])
    before = [[c.name, dict(c.arguments)] for c in solved(task_of(problem.reference["task"]))[0]]
    over = replace(problem, reference={**problem.reference, "before": before[:1] * 2})
    for planted, turns, reason in (
        (missing, real.solution(problem), "its solution scores 0: malformed"),
        (other, [Message("assistant", "done")], "its solution scores 0: the back end is not"),
        (over, real.solution(problem)[:1], "its solution scores 0: "),
    ):
        broken = _Broken(list(turns))
        found = await admit(broken, real.environment(), judge, [planted])
        assert found[0].reasons[0].startswith(reason)


async def test_demonstrations_are_right_without_noise_and_fit_a_small_context() -> None:
    curriculum = build("functions", {"levels": ["easy", "medium"]})
    reward = build_reward("function-calls")
    for shown in curriculum.demonstrations(40, seed=0):
        transcript = Transcript(shown.problem, shown.turns, Status.COMPLETED, 9)
        assert (await reward(transcript)).score == 1.0
        assert len(shown.problem.messages[0].content) < 200
    noisy = build("functions", {"levels": ["easy", "medium"], "noise": 1.0})
    scores = [
        (await reward(Transcript(d.problem, d.turns, Status.COMPLETED, 9))).score
        for d in noisy.demonstrations(40, seed=0)
    ]
    assert sum(scores) < 20


async def _demonstrated(share: float) -> dict[bool, list[tuple[bool, float]]]:
    """By whether the policies want a refusal: whether each demonstration refuses, and its score."""
    curriculum = build("functions", {"levels": ["medium"], "obliging": share})
    found: dict[bool, list[tuple[bool, float]]] = {True: [], False: []}
    for shown in curriculum.demonstrations(200, 7):
        reference: Any = shown.problem.reference
        wanted = [call.name for call in solved(task_of(reference["task"]))[0]]
        calls = [call for turn in shown.turns for call in turn.tool_calls]
        verdict = await _verdict(task_of(reference["task"]), *calls)
        refuses = "refuse" in [call.name for call in calls]
        found["refuse" in wanted].append((refuses, verdict.score))
    return found


async def test_an_obliging_demonstrator_does_what_it_should_refuse() -> None:
    found = await _demonstrated(1.0)
    assert len(found[True]) > 60
    assert set(found[True]) == {(False, 0.0)}
    assert set(found[False]) == {(False, 1.0)}
    some = await _demonstrated(0.6)
    assert 0.5 < sum(score == 0.0 for _, score in some[True]) / len(some[True]) < 0.7
    assert all(refuses == (score == 1.0) for refuses, score in some[True])
    assert set(some[False]) == {(False, 1.0)}


@pytest.mark.parametrize("level", ["easy", "medium"])
async def test_a_malformed_call_ends_the_episode(level: str) -> None:
    curriculum = build("functions", {"levels": [level]})
    environment = curriculum.environment()
    (problem,) = curriculum.problems("rl", 1, seed=0)
    assert environment is not None
    for call in (
        ToolCall("set_state", {}),
        ToolCall("ask", {"about": "x"}),
        ToolCall("ask", {"about": "x", "user": 3}),
        ToolCall("ask", {"about": "x", "user": "y", "id": 1}),
    ):
        episode = await environment.start(problem)
        with pytest.raises(ProtocolBreak):
            await episode.step(AssistantTurn("", "", None, (call,)))


async def test_a_call_on_a_thing_that_is_gone_counts_too() -> None:
    assert (await _verdict(DROP, VIEW, ASK_DROP, DROP_ANT, DROP_ANT)).score == 0.0
