"""`exact` and `regex`: a reference is a value, in whatever way Python would print it."""

from __future__ import annotations

import pytest

from engines.types import Json, Message, Problem, Status, ToolCall, Transcript
from infra.errors import InputError
from rewards.built_in_rewards import build

pytestmark = pytest.mark.unit


def transcript(reference: Json, said: str) -> Transcript:
    problem = Problem("rows/1", "d", (), {"answer": reference})
    return Transcript(problem, (Message("assistant", said),), Status.COMPLETED, 5)


@pytest.mark.parametrize(
    ("reference", "said", "score"),
    [
        *[(42.0, each, 1) for each in ("42", "42.0", " 42 ", "+42", "42.", "4.2e1")],
        *[(42.0, each, 0) for each in ("43", "-42", "", "forty-two", "42 apples", "nan", "4 2")],
        *[(42, each, 1) for each in ("42", "42.0", "042")],
        *[(1e3, each, 1) for each in ("1000", "1,000", "1e3", "1000.0")],
        *[(1000, each, 0) for each in ("1,00", "1.000", "10,00")],
        *[(0.1 + 0.2, each, 1) for each in ("0.3", ".3", "0.30000000000000004")],
        (0.1 + 0.2, "0.31", 0),
        (1e300, "1e300", 1),
        (12345678901234567890, "12345678901234567890", 1),
        (12345678901234567890, "12345678901234567891", 0),
        *[(True, each, 1) for each in ("true", "True", "TRUE")],
        *[(True, each, 0) for each in ("1", "yes", "false")],
        (False, "false", 1),
        (1, "true", 0),
        ([1.0, 2.0], "2", 1),
        ([1.0, 2.0], "3", 0),
        ([None, "a"], "a", 1),
        ([None, "a"], "null", 0),
        ([[1, 2], "none"], "[1, 2]", 1),
        ({"x": 1}, '{"x": 1}', 1),
        ({"x": 1}, "x", 0),
        ("42", "42", 1),
        ("42", "42.0", 0),
        ("42.0", "42", 0),
        ("True", "true", 0),
        ("a  b", " a b\n", 1),
        ("caf\u00e9", "cafe\u0301", 1),
        ({"x": 1}, '{"x": true}', 0),
        ({"x": [True, {"y": 1}]}, '{"x": [true, {"y": 1.0}]}', 1),
        ([[True]], "[1]", 0),
    ],
)
async def test_values_are_compared_and_texts_letter_by_letter(reference, said, score):
    assert (await build("exact")(transcript(reference, said))).score == score
    found = await build("regex", {"pattern": "Answer: (.*)"})(
        transcript(reference, f"So. Answer: {' '.join(said.split())}")
    )
    assert found.score == score


async def test_what_was_wanted_is_said_as_an_answer_would_say_it():
    verdict = await build("exact")(transcript([42.0, True, "x"], "y"))
    assert verdict.reason == "answered 'y', not 42 or true or 'x'"


async def test_case_may_be_ignored():
    assert (await build("exact", {"ignore_case": True})(transcript("True", "true"))).score == 1


@pytest.mark.parametrize("reference", [[], [None], ["42", ""], " ", [[]], {}])
async def test_nothing_and_a_blank_answer_are_no_reference(reference: Json):
    """An empty reply would be right."""
    for reward in (build("exact"), build("regex", {"pattern": ".*"})):
        with pytest.raises(InputError, match="problem rows/1 has no reference"):
            await reward(transcript(reference, "42"))


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (".*", "So:\n42"),
        (r"\d*", "It is 42."),
        (r"(\d*)\.", "42.\nSo."),
        ("Answer:(.*)", "Answer: 42\nAnswer: "),
    ],
)
async def test_a_match_of_nothing_is_no_answer(pattern: str, said: str):
    assert (await build("regex", {"pattern": pattern})(transcript("42", said))).score == 1


async def test_an_agents_answer_is_compared_alike():
    problem = Problem("p", "d", (), {"answer": 3.0, "needs": []})
    turns = (Message("assistant", "", tool_calls=(ToolCall("search", {}),)), Message("tool", "3"))
    said = Transcript(problem, (*turns, Message("assistant", "3")), Status.COMPLETED, 5)
    assert (await build("agent-answer")(said)).score == 1
