"""Batches that wait at a checkpoint come back as they were."""

from __future__ import annotations

import pytest

from engines.rollout.batch import StepBatch, dump_batches, load_batches
from engines.rollout.source import Cursor
from engines.types import Group, Message, Problem, Status, Tool, ToolCall
from tests.sample_parts import sample_of

pytestmark = pytest.mark.unit

PROBLEM = Problem(
    "agent/rl/3",
    "agent",
    (
        Message("user", "find \u00fc"),
        Message("assistant", "", "hm", (ToolCall("search", {"q": ["a", 1.5, None]}),)),
    ),
    reference={"answer": [1, 2]},
    tools=(Tool("search", "finds", {"q": "string"}, ("q",)),),
    thinking=True,
    metadata={"level": 2},
)


def group(name: str) -> Group:
    sample = sample_of(
        "agent/rl/3", "agent", name, f"{name}#0", 0, [1, 2, 3], [0, 1, 1],
        [0.0, -0.1 - 0.2, -1e-17], [-1, 4, 4], Status.TRUNCATED, 0.1 + 0.2, {"outcome": 1 / 3},
        "token budget", 12, {"turns": 2, "deep": {"a": [True]}},
    )  # fmt: skip
    return Group(PROBLEM, [sample, sample])


def batch(version: int, groups: list[Group], rolled: list[Group]) -> StepBatch:
    return StepBatch(
        version=version,
        groups=groups,
        rolled=rolled,
        wanted=2,
        reused=1,
        dropped=3,
        rounds=2,
        seconds=0.1,
        cursor=Cursor(7, {"agent": 7}),
        recovered=5,
        agreement={"engine_mismatch_mean": 1e-9},
    )


def test_what_waits_comes_back_equal_and_each_group_once() -> None:
    a, b, c, d = (group(name) for name in "abcd")
    batches = [batch(4, [a, b], [a, b, c]), batch(5, [c, d], [d])]
    data = dump_batches(batches, [b, d])
    found, surplus = load_batches(data)
    assert found == batches
    assert surplus == [b, d]
    assert found[0].groups[0] is found[0].rolled[0]
    # two samples of each, however often its group is named
    assert [data.count(f'"{name}#0"'.encode()) for name in "abcd"] == [2, 2, 2, 2]


def test_nothing_waits() -> None:
    assert load_batches(dump_batches([], [])) == ([], [])
