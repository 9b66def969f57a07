"""What each reward reads of a reference, and what it says of one that lacks it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from engines.types import Json, Message, Problem, Status, Transcript
from rewards.built_in_rewards import ASKING, BUILT_IN, build
from rewards.references import reference_fault, reference_keys
from rewards.rubric import Rubric, Term

pytestmark = pytest.mark.unit

OPTIONS: dict[str, dict[str, Any]] = {
    "code": {"sandbox": "unsafe"},
    "regex": {"pattern": r"\d+"},
    "length": {"budget": 9, "margin": 3},
    "external-judge": {
        "url": "https://api.test/v1",
        "model": "m",
        "prompt": "{answer} {reference}",
    },
    "judge": {"prompt": "{answer}? {reference.gold} {rubric}", "pattern": r"\d"},
}
READ = {
    "math": ("answer",),
    "exact": ("answer",),
    "regex": ("answer",),
    "agent-answer": ("answer", "needs"),
    "function-calls": ("task",),
    "repository-tests": ("files", "protected", "checks"),
    "code": ("tests",),
    "constraints": ("constraints",),
    "reasoning-gym": ("dataset", "config", "seed", "index"),
    "judge": ("gold", "rubric"),
    "external-judge": ("",),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_reward_names_the_fields_that_it_reads(name):
    assert reference_keys(name, OPTIONS.get(name, {})) == READ.get(name, ())


@pytest.mark.parametrize("name", sorted(READ.keys() - ASKING))
@pytest.mark.parametrize("reference", [None, {}, {"solution": "42"}])
async def test_a_reference_without_them_fails_the_sample_and_says_what_is_missing(name, reference):
    problem = Problem("rows/7", "d", (), reference)
    said = Transcript(problem, (Message("assistant", "42"),), Status.COMPLETED, 5)
    reward = build(name, OPTIONS.get(name))
    judgement = await Rubric([Term(name, 1.0, True, reward)]).judge(said)
    assert judgement.failed
    assert "problem rows/7 has" in judgement.reason
    if reference:
        assert f"without {READ[name][0]!r}" in judgement.reason
        assert "it has 'solution'" in judgement.reason


def judges_by_gold(transcript: Transcript) -> float:
    return float(transcript.answer == transcript.problem.reference)


def test_a_users_reward_may_name_them_as_well(monkeypatch):
    monkeypatch.setitem(sys.modules, "hook_under_test", sys.modules[__name__])
    assert reference_keys("hook_under_test:judges_by_gold", {}) == ()
    monkeypatch.setattr(judges_by_gold, "reference_keys", ["gold"], raising=False)
    assert reference_keys("hook_under_test:judges_by_gold", {}) == ("gold",)


@pytest.mark.parametrize(
    ("reference", "keys", "fault"),
    [
        ("XIV", ("answer",), ""),
        (0, ("answer",), ""),
        (False, ("answer",), ""),
        ({"answer": ""}, ("answer",), "has no reference"),
        ({"answer": None, "id": 3}, ("answer",), "has a reference without 'answer'"),
        ({"answer": float("nan")}, ("answer",), "has no reference"),
        ({"gold": 1}, ("",), ""),
        ({}, ("",), "has no reference"),
        (None, (), ""),
    ],
)
def test_a_value_that_says_nothing_is_missing(reference: Json, keys, fault):
    assert fault in reference_fault(reference, keys)
    assert bool(reference_fault(reference, keys)) is bool(fault)
