"""The contracts of group filters, buffers and data sources: ours keep them, others are caught."""

from __future__ import annotations

import itertools
import random

import pytest

from engines.draws import Fault
from engines.rollout.buffers import rule_faults
from engines.rollout.filters import build as build_filter
from engines.rollout.filters import example_groups, filter_faults
from engines.rollout.sources import Pick, Weighted, source_faults
from engines.types import Status

pytestmark = pytest.mark.unit

DOMAINS = ("a", "b")


def with_methods(**methods):
    """An instance of a class with these methods."""
    return type("Own", (), methods)()


@pytest.mark.parametrize("name", ["can-teach", "outcome-between", "every"])
@pytest.mark.parametrize("needs_spread", [True, False])
def test_our_filters_keep_theirs(name, needs_spread):
    assert filter_faults(build_filter(name, {}, needs_spread)) == []


def test_the_groups_that_filters_are_tried_on():
    groups = example_groups()
    assert [g.has_signal for g in groups] == [True, False, False, True, True, False, True]
    assert [len(g.samples) for g in groups] == [4, 4, 4, 4, 5, 1, 2]
    assert [s.status for s in groups[4].samples].count(Status.FAILED) == 2
    assert len({s.rollout_id for s in groups[3].samples}) == 2


calls = itertools.count()


def changes_the_group(self, group):
    group.samples.pop()
    return True


@pytest.mark.parametrize(
    ("keep", "check"),
    [
        (lambda self, group: group.reward > 0, "runs without raising"),
        (lambda self, group: exit(1), "runs without raising"),
        (lambda self, group: None, "answers a bool or a reason"),
        (lambda self, group: 0.5, "answers a bool or a reason"),
        (changes_the_group, "leaves the group alone"),
        (lambda self, group: next(calls) % 2 == 0, "answers by the group alone"),
        (
            lambda self, group: f"ticket {group.ticket}",
            "gives few reasons, without numbers in them",
        ),
    ],
)
def test_a_broken_filter_is_caught(keep, check):
    assert [fault.check for fault in filter_faults(with_methods(keep=keep))] == [check]


def oldest(self, waiting, count, seed):
    return [group.ticket for group in waiting[:count]]


def never(self, taken):
    return False


def at_random(self, waiting, count, seed):
    return [g.ticket for g in random.Random(seed).sample(waiting, min(count, len(waiting)))]


def by_luck(self, waiting, count, seed):
    return [g.ticket for g in random.sample(waiting, min(count, len(waiting)))]


ONCE_EACH = "takes waiting groups, each once, at most a step's"
ALONE = "answers by what it is given alone"


@pytest.mark.parametrize(
    ("take", "keeps", "checks"),
    [
        (oldest, never, []),
        (at_random, lambda self, taken: taken.times_taken < 3, []),
        (lambda self, waiting, count, seed: waiting[0].score, never, ["runs without raising"]),
        (lambda self, waiting, count, seed: [g.ticket for g in waiting], never, [ONCE_EACH]),
        (lambda self, waiting, count, seed: [1], never, [ONCE_EACH] * 3),
        (
            lambda self, waiting, count, seed: [w.ticket for w in waiting[:1]] * 2,
            never,
            [ONCE_EACH] * 2,
        ),
        (
            lambda self, waiting, count, seed: [],
            never,
            ["takes a group where one waits"] * 2,
        ),
        (oldest, lambda self, taken: None, ["keeps() gives a bool"]),
        (oldest, lambda self, taken: next(calls) % 2 == 0, [ALONE]),
    ],
)
def test_what_a_rule_is_told(take, keeps, checks):
    found = rule_faults(with_methods(take=take, keeps=keeps))
    assert [fault.check for fault in found] == checks


def test_a_rule_that_draws_without_the_seed_is_told_how():
    found = rule_faults(with_methods(take=by_luck, keeps=never))
    assert {fault.check for fault in found} == {ALONE}
    assert "draw with random.Random(seed)" in found[0].saw


class ByNumber:
    def pick(self, number):
        return Pick(DOMAINS[number % 2], number // 4)


class Counts(ByNumber):
    """Its picks hang on how often it was asked."""

    def __init__(self):
        self.calls = 0

    def pick(self, number):
        self.calls += 1
        return Pick(DOMAINS[self.calls // 3 % 2])


made = itertools.count()


class AnotherEachTime(ByNumber):
    def __init__(self):
        self.first = next(made)

    def pick(self, number):
        return Pick(DOMAINS[(self.first + number) % 2])


class Learns(ByNumber):
    def __init__(self):
        self.solved = dict.fromkeys(DOMAINS, 0.0)

    def pick(self, number):
        return Pick(min(DOMAINS, key=lambda domain: self.solved[domain]))

    def told(self, result):
        self.solved[result.domain] += result.outcome or 0.0


class LearnsByAsking(Learns):
    """What it picked counts as well."""

    def __init__(self):
        super().__init__()
        self.picked = {}

    def pick(self, number):
        self.picked[number] = super().pick(number)
        return self.picked[number]

    def told(self, result):
        if self.picked.get(result.number) == Pick(result.domain):
            super().told(result)


class Broken(Learns):
    def told(self, result):
        self.solved[result.domain] += result.outcome


@pytest.mark.parametrize(
    ("make", "checks"),
    [
        (lambda: Weighted({"a": 1, "b": 2}, DOMAINS, 0), []),
        (ByNumber, []),
        (Learns, []),
        (lambda: with_methods(pick=lambda self, n: "a"), ["picks a problem of one of the stage's"]),
        (lambda: with_methods(pick=lambda self, n: Pick("c")), ["picks a problem of one of the"]),
        (lambda: with_methods(pick=lambda self, n: Pick("a", -n)), ["picks a position from 0 on"]),
        (Counts, ["picks by the ticket's number"]),
        (AnotherEachTime, ["picks the same in a resumed stage"]),
        (LearnsByAsking, ["learns from told() alone"]),
        (Broken, ["runs without raising"]),
    ],
)
def test_what_a_source_is_told(make, checks):
    found = [fault.check for fault in source_faults(make, DOMAINS)]
    assert len(found) == len(checks)
    assert all(said.startswith(check) for said, check in zip(found, checks, strict=True)), found


def test_a_fault_says_what_was_seen():
    source = with_methods(pick=lambda self, number: Pick("c"))
    assert source_faults(lambda: source, DOMAINS) == [
        Fault(
            "picks a problem of one of the stage's domains",
            "pick(0) gave Pick(domain='c', position=None); domains: a, b",
        )
    ]
