"""Which samples of a step are shown, and of which the ranks hand logprobs back."""

from __future__ import annotations

import pytest

from engines.rollout.records.shown import best_and_worst, to_score
from engines.types import Group, Problem, Status
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit


def group(name, *rewards, length=4):
    samples = [
        sample_of(
            name, "d", name, f"{name}#{n}", n, [1] * length, [0] + [1] * (length - 1),
            [0.0] * length, [-1] + [0] * (length - 1), Status.COMPLETED, reward,
        )
        for n, reward in enumerate(rewards)
    ]  # fmt: skip
    return Group(Problem(name, "d", ()), samples)


def test_best_and_worst_of_groups_that_differ():
    groups = [group("a", 1.0, 1.0), group("b", 0.5, 0.0, 1.0), group("c", 0.0, 0.25)]
    assert [s.rollout_id for s in best_and_worst(groups)] == ["b#2", "b#1", "c#1", "c#0"]
    assert [s.rollout_id for s in best_and_worst([groups[0]])] == ["a#1", "a#0"]


def test_what_is_shown_is_scored_first_and_as_much_else_as_there_is_room():
    groups = [group("a", 0.5, 0.0, 1.0), group("b", 0.0, 1.0)]
    samples = [s for g in groups for s in g.samples]
    assert to_score(samples, groups) == [1, 2, 3, 4, 0]


def test_long_samples_are_scored_as_long_as_there_is_room():
    groups = [group("a", 0.5, 0.0, 1.0, length=30_000)]
    assert to_score(groups[0].samples, groups) == [1, 2]
