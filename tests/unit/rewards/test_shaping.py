"""Format, repetition and length terms; the boxed answer's reading."""

from __future__ import annotations

import pytest

from engines.types import Message, Problem, Status, ToolCall, Transcript
from rewards.built_in_rewards import build
from rewards.text import boxed

pytestmark = pytest.mark.unit


def _transcript(
    content: str,
    reasoning: str | None = None,
    *,
    thinking: bool = False,
    status: Status = Status.COMPLETED,
    num_tokens: int = 5,
) -> Transcript:
    problem = Problem("p", "reasoning", (), {"answer": "42"}, thinking=thinking)
    return Transcript(problem, (Message("assistant", content, reasoning),), status, num_tokens)


@pytest.mark.parametrize(
    ("transcript", "fault"),
    [
        (_transcript("42"), ""),
        (_transcript("42", ""), ""),
        (_transcript("42", "so", thinking=True), ""),
        (_transcript("42", thinking=True), "reasoning is missing"),
        (_transcript("42", " ", thinking=True), "reasoning is missing"),
        (_transcript("42", "so"), "reasoning was not asked for"),
        (_transcript("  "), "the answer is empty"),
        (_transcript("42</think>"), "the text contains tags"),
        (_transcript("42", "<|user|>", thinking=True), "the text contains tags"),
        (_transcript("42", status=Status.TRUNCATED), "the reply is truncated"),
    ],
)
async def test_format_tells_what_is_wrong(transcript, fault):
    verdict = await build("format")(transcript)
    assert (verdict.score, verdict.reason) == (float(not fault), fault)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("a b c d", 0.0),
        ("a a a", 0.0),  # shorter than one n-gram
        ("a a a a a a", -2 / 3),  # 3 n-grams of 4, one of them distinct
        ("a b c d a b c d", -1 / 5),  # 5 n-grams, 4 distinct
        ("再算再算再算", -1 / 3),  # of a script without spaces each letter is a unit
        ("x再算再算再算", -1 / 4),
    ],
)
async def test_repetition_is_minus_the_share_of_repeated_ngrams(text, score):
    verdict = await build("repetition", {"ngram": 4})(_transcript(text))
    assert verdict.score == pytest.approx(score)


async def test_an_answer_may_say_what_its_thought_said():
    said = " ".join(f"word{number}" for number in range(60))
    reward = build("repetition")
    assert (await reward(_transcript(said, said, thinking=True))).score == 0
    once = (await reward(_transcript(f"{said} {said}"))).score
    assert once == pytest.approx(-49 / 109), "60 n-grams of 12 are new, 49 come again"
    assert (await reward(_transcript("42", f"{said} {said}", thinking=True))).score == once


async def test_repetition_looks_into_the_reasoning_too():
    verdict = await build("repetition", {"ngram": 2})(_transcript("b", "a a a a"))
    assert verdict.score < 0


@pytest.mark.parametrize(("tokens", "score"), [(5, 0), (80, 0), (90, -0.5), (100, -1), (300, -1)])
async def test_length_falls_evenly_over_its_margin(tokens, score):
    reward = build("length", {"budget": 100, "margin": 20})
    assert (await reward(_transcript("x", num_tokens=tokens))).score == score


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{42}", ["42"]),
        (r"so \boxed{\frac{1}{2}}.", [r"\frac{1}{2}"]),
        (r"\boxed{1} \boxed{2}", ["1", "2"]),
        (r"\boxed{42", []),
        ("42", []),
        (r"\boxed {42}", ["42"]),
        ("\\boxed\n{42}", ["42"]),
        (r"\boxed 42.", ["42."]),
        (r"\boxed{\boxed{42}}", [r"\boxed{42}"]),
        (r"\boxedly{42}", []),
    ],
)
def test_boxed_reads_balanced_braces(text, found):
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (r"\boxed{42}", 1.0),
        (r"\boxed{ 42 }", 1.0),
        (r"\boxed{042}", 1.0),
        (r"\boxed{41}", 0.0),
        (r"\boxed{}", 0.0),
        (r"\boxed{41}\boxed{42}", 0.0),
        ("42", 0.0),
        (r"\boxed{" + "9" * 5000 + "}", 0.0),
    ],
)
async def test_math_decides_whole_numbers_by_itself(answer, score):
    assert (await build("math")(_transcript(answer))).score == score


async def test_math_asks_for_reasoning_where_the_problem_does():
    math = build("math")
    assert (await math(_transcript(r"\boxed{42}", "so", thinking=True))).score == 1.0
    assert (await math(_transcript(r"\boxed{42}", thinking=True))).score == 0.0
    assert (await math(_transcript(r"\boxed{42}", "so"))).score == 0.0


async def test_agent_answer_needs_the_tools_it_names_and_an_answer_at_the_end():
    problem = Problem("p", "agent", (), {"answer": "red", "needs": ["search"]})
    call = Message("assistant", "", tool_calls=(ToolCall("search", {"q": "ant"}),))
    told, answer = Message("tool", "color red"), Message("assistant", "red")
    reward = build("agent-answer")

    async def score(*turns: Message) -> float:
        return (await reward(Transcript(problem, turns, Status.COMPLETED, 9))).score

    assert await score(call, told, answer) == 1.0
    assert await score(answer) == 0.0
    assert await score(call, told) == 0.0
    assert await score(call, told, Message("assistant", "cat")) == 0.0
    assert await score(call, told, Message("assistant", "red", tool_calls=call.tool_calls)) == 0.0
