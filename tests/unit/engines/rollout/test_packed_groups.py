"""Groups that wait at a checkpoint come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.rollout.records.packing import pack_groups, unpack_groups
from engines.types import Group, Message, Problem, Status, Tool, ToolCall
from tests.parts.sample_parts import sample_of

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


def group(name: str, ticket: int) -> Group:
    sample = sample_of(
        "agent/rl/3", "agent", name, f"{name}#0", 0, [1, 2, 3], [0, 1, 1],
        [0.0, -0.1 - 0.2, -1e-17], [-1, 4, 4], Status.TRUNCATED, 0.1 + 0.2, {"outcome": 1 / 3},
        "token budget", 12, 0, {"turns": 2, "deep": {"a": [True]}},
    )  # fmt: skip
    return Group(PROBLEM, [sample, replace(sample, branch=1)], ticket)


def test_what_waits_comes_back_equal() -> None:
    groups = [group("a", 7), group("b", 9)]
    assert unpack_groups(pack_groups(groups)) == groups


def test_nothing_waits() -> None:
    assert unpack_groups(pack_groups([])) == []
