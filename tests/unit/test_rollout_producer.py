"""Which groups a step trains on, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.rollout.producer import Producer, trainable
from engines.rollout.source import Cursor, ProblemSource
from engines.types import Group, Problem, Status
from tasks.rl.body import _producer
from tasks.rl.spec import RlSettings, RlSpec
from tests.rollout_parts import CharChat, Policy, domain, roller
from tests.sample_parts import sample_of

pytestmark = pytest.mark.unit


def producer(policy, domains, **changes):
    options = {"groups_per_step": 4, "group_size": 2, "oversample": 1.0, "rounds": 2}
    options |= changes
    return Producer(
        roller=roller(policy),
        source=ProblemSource(domains, split="rl", seed=0),
        temperature=1.0,
        **options,
    )


def alternating():
    """A policy whose two answers to a problem differ only if its number is even."""
    turns: dict[str, int] = {}

    def say(prompt, _):
        turns[prompt] = turns.get(prompt, 0) + 1
        number = int(prompt[1:-1])
        return str(turns[prompt] % 2 if number % 2 == 0 else 0)

    return Policy(say)


def numbers(groups):
    return [int(g.problem.messages[0].content) for g in groups]


async def test_zero_variance_groups_are_replaced_by_fresh_problems():
    batch, unused = await producer(alternating(), [domain("d", float)]).collect(1, 0, [])
    # round 1 asks for 4: 0..3, of which 0 and 2 have signal; round 2 asks for 2 more: 4, 5
    assert numbers(batch.rolled) == [0, 1, 2, 3, 4, 5]
    assert numbers(batch.groups) == [0, 2, 4]
    assert (batch.rounds, unused) == (2, [])


async def test_where_teachers_judge_equal_rewards_are_kept_and_failures_are_not():
    never = domain("bad", lambda answer: float("x"))
    made = producer(
        alternating(), [domain("d", float), never], needs_spread=False, group_size=1, rounds=1
    )
    batch, unused = await made.collect(1, 0, [])
    assert [g.samples[0].domain for g in batch.rolled] == ["d", "bad", "d", "bad"]
    assert [g.samples[0].domain for g in batch.groups] == ["d", "d"]
    assert unused == []


async def test_refill_stops_when_enough_groups_have_signal():
    batch, unused = await producer(alternating(), [domain("d", float)], oversample=2.5).collect(
        1, 0, []
    )
    assert numbers(batch.rolled) == list(range(10))
    assert numbers(batch.groups) == [0, 2, 4, 6]
    assert numbers(unused) == [8]
    assert batch.rounds == 1


async def test_surplus_of_an_earlier_step_comes_first():
    made = producer(alternating(), [domain("d", float)], oversample=2.5)
    _, surplus = await made.collect(1, 0, [])
    batch, _ = await made.collect(2, 0, surplus)
    assert numbers(batch.groups)[0] == 8
    assert batch.reused == 1


async def test_groups_keep_the_order_of_their_problems_not_of_arrival():
    policy = Policy(lambda p, s: str(s.seed % 2), delay=lambda call: 60 - call)
    batch, _ = await producer(policy, [domain("d", float)], rounds=1, group_size=6).collect(
        1, 0, []
    )
    assert numbers(batch.rolled) == [0, 1, 2, 3]
    assert [s.sample_index for s in batch.rolled[0].samples] == list(range(6))


async def test_domains_take_turns_also_across_draws():
    source = ProblemSource([domain("a", float), domain("b", float)], split="rl", seed=0)
    first = [p.id for _, p in source.draw(3)]
    second = [p.id for _, p in source.draw(3)]
    assert first == ["a/rl/0", "b/rl/0", "a/rl/1"]
    assert second == ["b/rl/1", "a/rl/2", "b/rl/2"]


def test_a_cursor_continues_where_it_was_taken():
    domains = [domain("a", float), domain("b", float)]
    source = ProblemSource(domains, split="rl", seed=0)
    source.draw(5)
    cursor = source.cursor
    assert cursor == Cursor(5, {"a": 3, "b": 2})
    expected = [p.id for _, p in source.draw(4)]
    other = ProblemSource(domains, split="rl", seed=0)
    other.seek(cursor)
    assert [p.id for _, p in other.draw(4)] == expected


def sample(status, reward, trained=1):
    tokens = [1] + [2] * trained
    return sample_of(
        "p", "d", "g", "r", 0, tokens, [0] + [1] * trained, [0.0] * len(tokens),
        [-1] + [0] * trained, status, reward,
    )  # fmt: skip


def test_failed_and_aborted_samples_leave_the_group_and_their_siblings_stay():
    statuses = [Status.COMPLETED, Status.FAILED, Status.MALFORMED, Status.ABORTED, Status.TRUNCATED]
    group = Group(Problem("p", "d", ()), [sample(s, float(i)) for i, s in enumerate(statuses)])
    assert [s.status for s in trainable(group).samples] == [
        Status.COMPLETED,
        Status.MALFORMED,
        Status.TRUNCATED,
    ]


def test_a_failed_sample_gives_a_group_no_signal():
    samples = [sample(Status.COMPLETED, 1.0), sample(Status.FAILED, 0.0)]
    assert not Group(Problem("p", "d", ()), samples).has_signal


def stages_producer(algorithm, group_size, policy):
    """The producer of an RL stage, whose policy answers as `policy` does."""
    settings = RlSettings(
        steps=1, problems_per_step=4, group_size=group_size, oversample=2.0, refill_rounds=0,
        algorithm=algorithm, optimizer={"lr": 1e-4}, fleet={"context_length": 200},
    )  # fmt: skip
    parts = {"curriculum": {"name": "general"}, "rewards": [{"name": "format", "outcome": True}]}
    spec = RlSpec(settings=settings, domains=[{"name": "d", **parts}])
    context = SimpleNamespace(inputs={"model": Path()}, checkpoints=NoNotes())
    fleet = SimpleNamespace(client=policy)
    return _producer(spec, context, CharChat(), [domain("d", float)], fleet)


class NoNotes:
    def note(self, step, data): ...

    def notes(self, step):
        return []


@pytest.mark.parametrize(
    ("preset", "group_size", "rolled", "kept"),
    [
        ("grpo", 2, 8, [0, 2, 4, 6]),
        ("reinforce++", 2, 4, [0, 1, 2, 3]),
        ("reinforce++", 1, 4, [0, 1, 2, 3]),
        ("ppo", 1, 4, [0, 1, 2, 3]),
    ],
)
async def test_a_stage_drops_groups_of_equal_rewards_where_its_advantage_needs_spread(
    preset, group_size, rolled, kept
):
    made = stages_producer({"preset": preset}, group_size, alternating())
    batch, _ = await made.collect(1, 0, [])
    assert len(batch.rolled) == rolled
    assert numbers(batch.groups) == kept


async def test_with_a_critic_every_group_teaches_even_one_of_a_single_rollout():
    made = producer(alternating(), [domain("d", float)], needs_spread=False, group_size=1)
    batch, unused = await made.collect(1, 0, [])
    assert numbers(batch.groups) == numbers(batch.rolled) == [0, 1, 2, 3]
    assert (batch.rounds, unused) == (1, [])
