"""Which groups a step trains on, and in which order."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.rollout.buffers import GroupBuffer
from engines.rollout.loop import fill
from engines.rollout.producer import trainable
from engines.rollout.tickets import Admission, TicketSource
from engines.types import Group, Problem, Status
from tasks.rl.spec import RlSettings, RlSpec
from tasks.rl.stage_loop import loop_of, open_filter
from tests.parts.rollout_parts import AtVersion, Policy, domain, producer_of, roller
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit


def producer(policy, domains, **changes):
    options = {"groups_per_step": 4, "group_size": 2, "waves": 2} | changes
    return producer_of(roller(policy), domains, **options)


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
    made, buffer = producer(alternating(), [domain("d", float)])
    sampled = await fill(made)
    # wave 1 asks for 4: 0..3, of which 0 and 2 have signal; wave 2 asks for 2 more: 4, 5
    assert numbers(sampled.groups) == [0, 1, 2, 3, 4, 5]
    assert numbers(sampled.kept) == [0, 2, 4]
    assert (sampled.waves, len(buffer)) == (2, 3)


async def test_where_teachers_judge_equal_rewards_are_kept_and_failures_are_not():
    never = domain("bad", lambda answer: float("x"))
    made, buffer = producer(
        alternating(), [domain("d", float), never], needs_spread=False, group_size=1, waves=1
    )
    sampled = await fill(made)
    assert [g.samples[0].domain for g in sampled.groups] == ["d", "bad", "d", "bad"]
    assert [g.samples[0].domain for g in buffer.take()] == ["d", "d"]


async def test_waves_stop_when_enough_groups_have_signal_and_a_step_takes_the_oldest_tickets():
    made, buffer = producer(alternating(), [domain("d", float)], oversample=2.5)
    sampled = await fill(made)
    assert numbers(sampled.groups) == list(range(7)), "of ten at most"
    assert (sampled.waves, made.dropped_share) == (1, 3 / 7 / 2)
    assert numbers(buffer.take()) == [0, 2, 4, 6]
    await fill(made)
    assert numbers(buffer.take())[0] == 8, "the first after these that teaches"


@pytest.mark.parametrize("usual", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(6))
async def test_a_step_takes_what_it_would_take_of_all_that_was_drawn(seed, usual):
    """Whatever the order in which groups end, and however many are usually dropped."""

    async def taken(*, delay=lambda _: 1, usual=usual):
        policy = Policy(lambda p, s: str(s.seed // (seed + 7) % 2), delay)
        made, buffer = producer(policy, [domain("d", float)], oversample=2.0)
        made.dropped_share = usual
        sampled = await fill(made)
        return numbers(sampled.groups), numbers(buffer.take())

    rolled, step = await taken()
    assert (rolled, step) == await taken(delay=lambda call: 1 + 37 * call % 50)
    assert step == (await taken(usual=1.0))[1], "where all of a wave starts at once"
    assert rolled == list(range(len(rolled)))
    if usual == 0.0 and len(step) == 4 and rolled[-1] < 8:
        assert rolled[-1] == step[-1], "the last one to start completes the step"


def test_a_wave_is_not_larger_for_what_floats_make_of_its_factor():
    assert Admission(100, oversample=1.1).in_turns(0, 0) == 110, "110.00000000000001 to floats"
    assert Admission(3, oversample=1.5).in_turns(0, 0) == 5


async def test_groups_keep_the_order_of_their_tickets_not_of_arrival():
    policy = Policy(lambda p, s: str(s.seed % 2), delay=lambda call: 60 - call)
    made, _ = producer(policy, [domain("d", float)], waves=1, group_size=6)
    sampled = await fill(made)
    assert numbers(sampled.groups) == [0, 1, 2, 3]
    assert [s.sample_index for s in sampled.groups[0].samples] == list(range(6))
    assert sampled.groups[2].samples[0].group_id == "2/d/rl/2"
    later, earlier = sampled.groups[3], sampled.groups[1]
    other = GroupBuffer(groups_per_step=4, max_staleness=0, policy=AtVersion())
    other.put(later)
    other.put(earlier)
    assert numbers(other.take()) == [1, 3]


@pytest.mark.parametrize(
    ("waiting", "waves", "wanted"), [(0, 0, 6), (1, 0, 5), (3, 1, 2), (4, 1, 0), (0, 2, 0)]
)
def test_admission_of_waves_by_hand(waiting, waves, wanted):
    admission = Admission(groups_per_step=4, oversample=1.5, waves=2)
    assert admission.in_turns(waiting, waves) == wanted


@pytest.mark.parametrize(
    ("waiting", "rolling", "drawn", "trained", "wanted"),
    [
        (0, 0, 0, 0, 28),  # 8 for the next step, times 1.5, and 16 for the two after it
        (0, 28, 28, 0, 0),
        (5, 9, 28, 0, 12),  # 3 times 1.5, and 16, are 21
        (9, 9, 28, 0, 6),  # the next step's wait: 15 are missing
        (0, 0, 70, 0, 2),  # of the 72 that two waves for each of three steps would have drawn
        (0, 0, 70, 1, 26),
        (0, 0, 200, 9, 12),  # one step is left
        (8, 0, 200, 9, 0),
        (24, 3, 40, 0, 0),
        (9, 14, 28, 0, 0),  # one alone does not start
        (9, 13, 28, 0, 2),
        (23, 0, 40, 0, 1),  # unless nothing is under way
    ],
)
def test_admission_beside_training_by_hand(waiting, rolling, drawn, trained, wanted):
    admission = Admission(groups_per_step=8, oversample=1.5, waves=2, max_staleness=2)
    found = admission.beside_training(
        waiting=waiting, rolling=rolling, drawn=drawn, trained=trained, steps=10
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("waiting", "rolling", "trained", "wanted"),
    [
        (0, 0, 2, 16),  # not 24: one step's are being trained on
        (16, 0, 2, 0),
        (8, 4, 2, 4),
        (0, 0, 8, 8),  # one step is left after this one
        (0, 0, 9, 0),
    ],
)
def test_while_a_step_is_trained_no_ticket_starts_that_would_be_too_old(
    waiting, rolling, trained, wanted
):
    admission = Admission(groups_per_step=8, waves=9, max_staleness=2)
    found = admission.beside_training(
        waiting=waiting, rolling=rolling, drawn=40, trained=trained, steps=10, is_training=True
    )
    assert found == wanted


def test_a_large_step_starts_tickets_a_few_at_a_time():
    admission = Admission(groups_per_step=1000, max_staleness=1)

    def count(rolling):
        return admission.beside_training(waiting=0, rolling=rolling, drawn=9, trained=0, steps=10)

    assert (count(1993), count(1992)) == (0, 8)
    assert admission.beside_training(waiting=9, rolling=99, drawn=1999, trained=0, steps=2) == 1, (
        "there will be no more to start it with"
    )


async def test_domains_take_turns_also_across_draws():
    source = TicketSource([domain("a", float), domain("b", float)], split="rl", seed=0)
    first = [(t.number, t.problem.id) for t in source.draw(3)]
    second = [(t.number, t.problem.id) for t in source.draw(3)]
    assert first == [(0, "a/rl/0"), (1, "b/rl/0"), (2, "a/rl/1")]
    assert second == [(3, "b/rl/1"), (4, "a/rl/2"), (5, "b/rl/2")]


def test_a_source_goes_on_from_any_ticket():
    domains = [domain("a", float), domain("b", float)]
    source = TicketSource(domains, split="rl", seed=0, start=7)
    source.draw(5)
    expected = source.draw(4)
    other = TicketSource(domains, split="rl", seed=0, start=7)
    other.next = 5
    assert other.draw(4) == expected
    assert [t.group_id for t in expected] == [
        "5/b/rl/9", "6/a/rl/10", "7/b/rl/10", "8/a/rl/11",
    ]  # fmt: skip
    assert other.next == 9
    assert [source.again(n) for n in (8, 5, 6, 7)] == [expected[n] for n in (3, 0, 1, 2)]
    assert source.next == 9


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


async def stages_sampled(algorithm, group_size, policy):
    """What an RL stage samples with a policy that answers as `policy` does."""
    settings = RlSettings(
        steps=1, problems_per_step=4, group_size=group_size, oversample=2.0, refill_rounds=0,
        algorithm=algorithm, optimizer={"lr": 1e-4},
    )  # fmt: skip
    parts = {"curriculum": {"name": "general"}, "rewards": [{"name": "format", "outcome": True}]}
    spec = RlSpec(settings=settings, domains=[{"name": "d", **parts}])
    context = SimpleNamespace(inputs={"model": Path()}, checkpoints=NoNotes())
    roles = SimpleNamespace(trainer=None, critic=None)
    async with AsyncExitStack() as stack:
        group_filter = await open_filter(stack, settings)
    source = TicketSource([domain("d", float)], split="rl", seed=spec.seed)
    policy_roller = roller(policy)
    loop = loop_of(spec, context, source, policy_roller, roles, AtVersion(), group_filter, nothing)
    return await fill(loop.producer)


async def nothing(): ...


class NoNotes:
    def note(self, kind, number, data): ...

    def notes(self, kind, first, last=None):
        return []


@pytest.mark.parametrize(
    ("preset", "group_size", "rolled", "kept"),
    [
        ("grpo", 2, 7, [0, 2, 4, 6]),
        ("reinforce++", 2, 4, [0, 1, 2, 3]),
        ("reinforce++", 1, 4, [0, 1, 2, 3]),
        ("ppo", 1, 4, [0, 1, 2, 3]),
    ],
)
async def test_a_stage_drops_groups_of_equal_rewards_where_its_advantage_needs_spread(
    preset, group_size, rolled, kept
):
    sampled = await stages_sampled({"preset": preset}, group_size, alternating())
    assert len(sampled.groups) == rolled
    assert numbers(sampled.kept) == kept
