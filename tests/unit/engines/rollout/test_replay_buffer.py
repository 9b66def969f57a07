"""A buffer whose rule is the user's: what a step takes, what comes again, what stays true."""

from __future__ import annotations

import random

import pytest

from engines.rollout.buffers import build
from engines.rollout.metrics import step_metrics
from engines.rollout.records.journals import RolloutJournal
from infra.errors import InputError
from tests.parts.loop_parts import Notes, Parts, by_seed, informative
from tests.parts.rollout_parts import AtVersion

pytestmark = pytest.mark.unit


class Widest:
    """The groups whose rewards differ most; each may be taken `times` times."""

    def __init__(self, times=1):
        self.times = times
        self.seen = []

    def take(self, waiting, count, seed):
        self.seen.append((seed, waiting))
        ranked = sorted(waiting, key=lambda g: (-(max(g.rewards) - min(g.rewards)), g.ticket))
        return [g.ticket for g in ranked[:count]]

    def keeps(self, taken):
        return taken.times_taken < self.times


class AtRandom(Widest):
    def take(self, waiting, count, seed):
        draw = random.Random(seed)
        return [g.ticket for g in draw.sample(list(waiting), min(count, len(waiting)))]


def spread(group):
    rewards = [s.reward for s in group.samples]
    return max(rewards) - min(rewards)


async def test_a_rule_chooses_among_all_that_waits():
    """Sampling and training take turns: of 8 groups the 4 with the widest rewards."""
    parts = Parts(by_seed, oversample=2.0, rule=Widest())
    (first, second) = await parts.run(2)
    for result in (first, second):
        ranked = sorted(result.sampled.kept, key=lambda g: (-spread(g), g.ticket))
        assert [g.ticket for g in result.groups] == [g.ticket for g in ranked[:4]]
    assert len(first.dropped) == 4, "what was not taken is too old after the publish"
    assert step_metrics(second)["groups_reused"] == 0


async def test_a_group_comes_again_within_the_bound_and_sampling_goes_on():
    rule = Widest(times=2)
    parts = Parts(by_seed, max_staleness=3, rule=rule, slow=30, waves=2)
    results = await parts.run(10)
    taken = [g.ticket for r in results for g in r.groups]
    assert max(taken.count(ticket) for ticket in set(taken)) == 2
    assert all(len({g.ticket for g in r.groups}) == len(r.groups) for r in results)
    assert max(s for r in results for s in r.staleness) <= 3
    reused = [step_metrics(r)["groups_reused"] for r in results]
    assert sum(reused) == len(taken) - len(set(taken)) > 0
    assert [len(r.groups) for r in results] == [4] * 10
    ages = {(g.age, g.times_taken) for _, waiting in rule.seen for g in waiting}
    assert max(age for age, _ in ages) <= 3
    assert {times for _, times in ages} == {0, 1}
    assert len({seed for seed, _ in rule.seen}) == 10


async def test_a_group_that_was_trained_on_is_no_waste_when_it_gets_too_old():
    parts = Parts(by_seed, max_staleness=1, rule=Widest(times=9))
    results = await parts.run(6)
    trained = {g.ticket for r in results for g in r.groups}
    assert not trained & {g.ticket for r in results for g in r.dropped}


class Wrong(Widest):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def take(self, waiting, count, seed):
        return self.answer(waiting)

    def keeps(self, taken):
        raise KeyError("times")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda waiting: waiting[0].nothing, "take() raised AttributeError: "),
        (lambda waiting: [0, 0], "take() gave a ticket twice: [0, 0]"),
        (lambda waiting: [99], "take() gave tickets that do not wait: [99]"),
        (lambda waiting: range(5), "take() gave 5 tickets, more than the 4 of a step"),
        (lambda waiting: None, "take() raised TypeError: "),
        (lambda waiting: [g.ticket for g in waiting][:4], "keeps() raised KeyError: 'times'"),
    ],
)
async def test_a_rule_that_is_wrong_costs_its_choice_and_is_said(answer, said):
    parts = Parts(by_seed, oversample=1.5, rule=Wrong(answer))
    results = await parts.run(2)
    assert [g.ticket for g in results[0].groups] == [0, 1, 2, 3]
    assert said in results[0].buffer_fault


def attempt(notes, rule, *, version=0, delay, slow=25):
    return Parts(
        by_seed, max_staleness=2, oversample=1.5, waves=2, slow=slow, delay=delay, rule=rule,
        journal=RolloutJournal(notes), notes=notes, version=version,
    )  # fmt: skip


@pytest.mark.parametrize("rule", [Widest, AtRandom])
async def test_a_resumed_stage_repeats_its_takes_with_the_groups_that_came_again(tmp_path, rule):
    """Killed in step 8, with a checkpoint of step 4; the clock of the second attempt is another."""
    notes = Notes()
    first = attempt(notes, rule(times=3), delay=lambda call: 3 + 11 * call % 60)
    told = []

    async def after_step(result):
        told.append(result)
        if result.step == 4:
            first.buffer.save(tmp_path)
            first.sampler.save(tmp_path)
        return result.step == 8

    first.sampler.steps = 12
    await first.loop.run(first=1, last=12, after_step=after_step)
    await first.producer.flush()
    before, after = told[:4], told[4:]
    old = {g.ticket for r in before for g in r.groups}
    assert old & {g.ticket for r in after for g in r.groups}, "one from before the checkpoint came"
    assert sum(r.reused for r in after) > 0

    second = attempt(notes, rule(times=3), version=4, delay=lambda call: 3 + 7 * call % 90, slow=40)
    second.buffer.restore(tmp_path)
    second.sampler.restore(tmp_path)
    await second.takes.recover(5)
    await second.producer.recover(second.sampler.first_open, second.takes.from_step(5))
    again = await second.run(12, first=5)
    assert second.trainer.tokens[:4] == first.trainer.tokens[4:8]
    assert [r.reused for r in again[:4]] == [r.reused for r in after]
    assert max(s for r in again for s in r.staleness) <= 2
    taken = [g.ticket for r in before + again for g in r.groups]
    assert max(taken.count(ticket) for ticket in set(taken)) <= 3


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("oldest", {}, "unknown buffer 'oldest'.*oldest-first"),
        ("oldest-first", {"times": 2}, "has no options; remove times"),
        ("math:fsum", {}, "fsum"),
    ],
)
def test_a_buffer_that_cannot_be_built_is_bad_input(name, options, said):
    with pytest.raises(InputError, match=said):
        build(name, options, groups_per_step=4, max_staleness=0, policy=AtVersion(), seed=0)


async def test_the_default_takes_the_oldest_once():
    parts = Parts(informative(), max_staleness=2)
    results = await parts.run(6)
    assert all(r.reused == 0 and not r.buffer_fault for r in results)
