"""Sampling beside training: what overlaps, how old it gets, and what a resumed attempt repeats."""

from __future__ import annotations

import asyncio
import json

import pytest

from engines.rollout.background_sampler import _Rolling
from engines.rollout.drivers.driver import Conversation
from engines.rollout.drivers.session_host import sampling_seed
from engines.rollout.metrics import step_metrics
from engines.rollout.records.journals import RolloutJournal
from engines.rollout.records.packing import unpack_samples
from engines.rollout.tickets import Admission
from infra.errors import EngineError, InputError
from infra.processes.coroutines import end_tasks
from tests.parts.loop_parts import Notes, Parts, by_seed
from tests.parts.rollout_parts import domain

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("k", [1, 2, 4])
async def test_sampling_goes_on_while_the_trainer_works_and_nothing_is_too_old(k):
    """Where it did not, the loop would wait for ever: the policy answers only then."""
    parts = Parts(by_seed, max_staleness=k, slow=60)
    parts.answer_only_during_updates(free_calls=8)
    results = await parts.run(12)
    assert sum(parts.trainer.answered_meanwhile) == 12 * 8 - 8
    staleness = [s for r in results for s in r.staleness]
    assert max(staleness) <= k
    assert max(staleness) > 0
    assert [len(r.groups) for r in results] == [4] * 12
    tickets = [g.ticket for r in results for g in r.groups]
    assert len(set(tickets)) == len(tickets), "none is trained on twice"
    assert [r.version for r in results] == list(range(1, 13))
    takes = [parts.takes.of(step).tickets for step in range(1, 13)]
    assert takes == [tuple(g.ticket for g in r.groups) for r in results]


async def test_no_more_starts_than_can_be_trained_in_time():
    """With 16 k groups waiting or under way, the last is trained k versions later."""
    parts = Parts(by_seed, max_staleness=2, slow=500)
    results = await parts.run(6)
    assert [step_metrics(r)["staleness_max"] for r in results] == [0, 1, 2, 2, 2, 2]
    assert all(r.waiting + r.sampled.rolling <= 12 for r in results)
    assert sum(len(r.sampled.groups) for r in results) <= 6 * 4


async def test_what_starts_during_an_update_is_not_too_old_at_its_turn():
    parts = Parts(by_seed, max_staleness=2, slow=100, waves=4)
    results = await parts.run(8)
    assert [len(r.groups) for r in results] == [4] * 8
    assert sum(r.sampled.stale + len(r.dropped) for r in results) == 0


async def test_a_stage_samples_no_more_than_its_steps_need():
    parts = Parts(by_seed, max_staleness=8)
    await parts.run(3)
    assert len(parts.policy.calls) == 3 * 8


async def test_groups_of_equal_rewards_are_replaced_and_others_train_meanwhile():
    """Every other problem teaches nothing."""

    def say(prompt, sampling):
        return str(sampling.seed % 97) if int(prompt[1:-1]) % 2 else "0"

    parts = Parts(say, max_staleness=1, waves=4, slow=30)
    results = await parts.run(8)
    assert [len(r.groups) for r in results] == [4] * 8
    assert all(g.ticket % 2 for r in results for g in r.groups)


async def test_where_too_few_groups_teach_the_update_is_skipped_and_the_loop_goes_on():
    parts = Parts(lambda *_: "0", max_staleness=2, waves=2)
    results = await parts.run(3)
    assert parts.trainer.trained == []
    assert [r.version for r in results] == [0, 0, 0]
    assert parts.producer.source.next <= (3 + 2) * 2 * 4, "bounded by waves"


async def test_a_slow_rollout_delays_its_own_group_alone():
    parts = Parts(by_seed, max_staleness=2, delay=lambda call: 10**6 if call == 3 else 1)
    results = await parts.run(9, stop_after=3)
    assert [len(r.groups) for r in results] == [4, 4, 4]
    assert 1 not in {g.ticket for r in results for g in r.groups}


@pytest.mark.parametrize("on_stale", ["drop", "requeue"])
async def test_a_rollout_that_outlives_the_bound_is_ended_and_counted(on_stale):
    """The third turn, of ticket 1, never ends; asked again, it does."""
    parts = Parts(
        by_seed, max_staleness=1, delay=lambda call: 10**6 if call == 3 else 1,
        slow=40, on_stale=on_stale,
    )  # fmt: skip
    results = await parts.run(8)
    assert sum(r.sampled.stale for r in results) == 1
    assert [r.sampled.stale for r in results].index(1) == 2, "ended by the second publish"
    trained = {g.ticket for r in results for g in r.groups}
    assert (1 in trained) == (on_stale == "requeue")
    assert sum(step_metrics(r)["groups_stale"] for r in results) == 1


async def test_a_publish_leaves_turns_under_way_alone_and_each_token_has_its_version():
    parts = Parts(by_seed, max_staleness=3, slow=60)
    parts.answer_only_during_updates(free_calls=8)
    results = await parts.run(10)
    shares = [step_metrics(r) for r in results]
    lags = {name for m in shares for name in m if name.startswith("tokens_lag_")}
    assert lags <= {f"tokens_lag_{n}" for n in range(4)}
    assert "tokens_lag_1" in lags
    for metrics in shares:
        found = [v for name, v in metrics.items() if name.startswith("tokens_lag_")]
        assert not found or sum(found) == pytest.approx(1.0)


async def test_a_step_tells_how_many_samples_are_how_old():
    results = await Parts(by_seed, max_staleness=2, slow=500).run(4)
    metrics = [step_metrics(r) for r in results]
    ages = [{n: m[f"staleness_{n}"] for n in range(3) if f"staleness_{n}" in m} for m in metrics]
    assert ages[0] == {}, "all are new"
    for shares, step in zip(ages[1:], metrics[1:], strict=True):
        assert sum(shares.values()) == pytest.approx(1.0)
        assert step["staleness_mean"] == pytest.approx(sum(n * s for n, s in shares.items()))
        assert step["staleness_max"] == max(shares)


async def test_an_error_of_a_rollout_ends_the_loop_as_it_is():
    calls = iter(range(100))

    def say(*_):
        if (call := next(calls)) > 20:
            raise EngineError("all servers are gone")
        return str(call % 2)

    with pytest.raises(EngineError, match="all servers are gone"):
        await Parts(say, max_staleness=2).run(30)


async def test_an_error_of_a_curriculum_ends_the_loop_as_it_is():
    parts = Parts(by_seed, max_staleness=2)
    draw = parts.producer.source.draw

    def failing(count):
        if count and parts.producer.source.next >= 16:
            raise InputError("there are no more problems")
        return draw(count)

    parts.producer.source.draw = failing
    with pytest.raises(InputError, match="no more problems"):
        await parts.run(30)


async def test_nothing_rolls_when_the_loop_is_over():
    parts = Parts(by_seed, max_staleness=4, delay=lambda call: 1 if call < 30 else 10**6)
    await parts.run(2)
    await asyncio.sleep(0)
    rolling = [t for t in asyncio.all_tasks() if t.get_name().startswith(("ticket", "rollout"))]
    assert rolling == []


def resumable(notes, *, version=0, delay, slow=25):
    journal = RolloutJournal(notes)
    return Parts(
        by_seed, max_staleness=2, oversample=1.5, waves=2, slow=slow, delay=delay,
        journal=journal, notes=notes, version=version,
    )  # fmt: skip


async def test_a_resumed_stage_repeats_its_takes_loses_nothing_and_trains_nothing_twice(tmp_path):
    """Killed in step 8, with a checkpoint of step 4; the clock of the second attempt is another."""
    notes = Notes()
    first = resumable(notes, delay=lambda call: 3 + 11 * call % 60)
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
    finished = {seed for _, data in notes.kept["rollouts"] for seed in seeds_of(data)}

    second = resumable(notes, version=4, delay=lambda call: 3 + 7 * call % 90, slow=40)
    second.buffer.restore(tmp_path)
    second.sampler.restore(tmp_path)
    await second.takes.recover(5)
    takes = second.takes.from_step(5)
    assert [take.step for take in takes] == [5, 6, 7, 8]
    await second.producer.recover(second.sampler.first_open, takes)
    again = await second.run(12, first=5)

    assert second.trainer.tokens[:4] == first.trainer.tokens[4:8]
    assert second.trainer.trained[:4] == first.trainer.trained[4:8]
    tickets = [g.ticket for r in told[:4] + again for g in r.groups]
    assert len(set(tickets)) == len(tickets) == 12 * 4
    assert max(s for r in again for s in r.staleness) <= 2
    assert not finished & {sampling.seed for _, sampling in second.policy.calls}


def seeds_of(note):
    """Of the first turns of a note's rollouts: they follow from ticket and index."""
    samples, _ = unpack_samples(note)
    return [sampling_seed(0, s.group_id, s.sample_index, 0, 0) for s in samples]


async def test_open_tickets_of_a_checkpoint_are_rolled_first(tmp_path):
    parts = Parts(by_seed, max_staleness=2, delay=lambda call: 10**6 if call == 3 else 1)

    async def after_step(result):
        if result.step == 2:
            parts.sampler.save(tmp_path)
        return result.step == 2

    parts.sampler.steps = 9
    await parts.loop.run(first=1, last=9, after_step=after_step)
    other = Parts(by_seed, max_staleness=2, version=2)
    other.sampler.restore(tmp_path)
    assert other.sampler.first_open == 1
    results = await other.run(5, first=3)
    assert results[0].groups[0].ticket == 1


async def test_a_checkpoint_has_each_ticket_that_is_to_be_rolled_once(tmp_path):
    """Tasks that are over, of which the loop has not heard yet: 0 waits in the buffer, 1 raised and
    is to be rolled. 2 is under way. 3 was given up and is ending: it is open where it is requeued,
    and else another one replaces it."""

    async def raises():
        raise EngineError("lost")

    for on_stale, opened in (("drop", [1, 2]), ("requeue", [1, 2, 3])):
        sampler = (parts := Parts(by_seed, max_staleness=1, on_stale=on_stale)).sampler
        works = [asyncio.sleep(0), raises(), asyncio.sleep(60), asyncio.sleep(60)]
        for ticket, work in zip(parts.producer.source.draw(4), works, strict=True):
            task = asyncio.create_task(work)
            born = 0 if ticket.number == 3 else 2
            sampler._rolling[ticket.number] = _Rolling(ticket, born, task)
        await asyncio.sleep(0.01)
        parts.policy.version = 2
        parts.producer.admission = Admission(0)
        sampler.step_done()
        sampler._open = [3] if on_stale == "requeue" else []
        sampler.save(tmp_path)
        assert json.loads((tmp_path / "tickets.json").read_text())["open"] == opened
        await end_tasks([each.task for each in sampler._rolling.values()], 1.0)


@pytest.mark.parametrize("on_stale", ["drop", "requeue"])
async def test_a_ticket_that_finished_at_the_last_moment_is_not_given_up_as_well(on_stale):
    """Its task is done, and the loop has not heard so yet, when the policy has its next version."""
    parts = Parts(by_seed, max_staleness=1, on_stale=on_stale)
    sampler, ticket = parts.sampler, parts.producer.source.draw(1)[0]
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    sampler._rolling[ticket.number] = _Rolling(ticket, 0, task)
    parts.policy.version = 2
    sampler.step_done()
    assert (sampler._sampled.stale, sampler._open) == (0, [])


@pytest.mark.parametrize("k", [0, 1])
async def test_a_driver_that_waits_for_a_task_it_cancelled_costs_its_rollout_alone(k):
    class Cancels(Conversation):
        async def run(self, problem, sessions):
            if problem.id.endswith("/1"):
                task = asyncio.create_task(asyncio.sleep(60))
                await asyncio.sleep(0)
                task.cancel()
                await task
            return await super().run(problem, sessions)

    cancels = domain("d", float, driver=Cancels(None))
    parts = Parts(by_seed, max_staleness=k, domains=[cancels], oversample=2.0)
    results = await parts.run(2)
    rolled = [group for result in results for group in result.sampled.groups]
    (group,) = [group for group in rolled if group.ticket == 1]
    said = "driver: it waited for a task of its own that was cancelled"
    assert {sample.reason for sample in group.samples} == {said}
    assert [len(result.groups) for result in results] == [4, 4]
