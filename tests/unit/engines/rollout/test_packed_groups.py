"""Groups that wait at a checkpoint come back as they were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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


def test_experts_come_back_as_they_are_stored_with_samples_that_have_none() -> None:
    (without, with_some), length = group("a", 7).samples, 3
    shorter = replace(with_some, branch=2, experts=np.zeros((length, 2), np.uint8))
    wide = replace(with_some, branch=3, experts=np.arange(-1, 8, dtype=np.int16).reshape(length, 3))
    groups = [Group(PROBLEM, [shorter, without, wide], 7)]
    (found,) = unpack_groups(pack_groups(groups))
    assert [found] == groups
    kinds = [
        None if s.experts is None else (s.experts.dtype, s.experts.shape) for s in found.samples
    ]
    assert kinds == [(np.uint8, (3, 2)), None, (np.int16, (3, 3))]


def test_kept_tokens_come_back_beside_experts() -> None:
    (one, other), kept = group("a", 7).samples, np.array([~2, 9, ~3, 4, 150_000], np.int32)
    both = replace(one, kept=kept, experts=np.arange(3, dtype=np.uint8).reshape(3, 1))
    groups = [Group(PROBLEM, [both, other, replace(other, branch=2, kept=kept[:3])], 7)]
    (found,) = unpack_groups(pack_groups(groups))
    assert [found] == groups
    assert [None if s.kept is None else s.kept.tolist() for s in found.samples] == [
        *(kept.tolist(), None, kept[:3].tolist())
    ]


def test_nothing_waits() -> None:
    assert unpack_groups(pack_groups([])) == []
