"""Finished rollouts are durable at once, and no later attempt samples them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engines.rollout.loop import fill
from engines.rollout.records.journals import Finished, RolloutJournal, prompt_checksum
from engines.rollout.records.packing import pack_samples, unpack_samples
from engines.rollout.records.take_log import Take
from engines.rollout.roller import Roller, Window
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import Generation, Rollout, Sample, Sampling, Status, TokenIds
from infra.errors import EngineError
from tests.parts.rollout_parts import CharChat, Policy, domain, ids, producer_of, roller
from tests.parts.sample_parts import sample_of

pytestmark = pytest.mark.unit


@dataclass
class Notes:
    """Keeps notes in memory, and may fail as a store does."""

    kept: list[tuple[int, bytes]] = field(default_factory=list)
    error: OSError | None = None

    def note(self, kind: str, number: int, data: bytes) -> None:
        assert kind == "rollouts"
        if self.error:
            raise self.error
        self.kept.append((number, data))

    def notes(self, kind: str, first: int, last: int | None = None) -> list[bytes]:
        assert kind == "rollouts"
        last = 10**9 if last is None else last
        return [data for number, data in self.kept if first <= number <= last]


def say(prompt: str, sampling: Sampling) -> str:
    assert sampling.seed is not None
    return str(sampling.seed % 10)


async def collected(
    policy: Policy, notes: Notes, takes: Sequence[Take] = ()
) -> tuple[list[list[Sample]], int]:
    made, _ = producer_of(
        roller(policy), [domain("d", float)], groups_per_step=3, group_size=4, waves=2,
        journal=RolloutJournal(notes), policy=policy,
    )  # fmt: skip
    await made.recover(0, takes)
    sampled = await fill(made)
    return [group.samples for group in sampled.groups], sampled.recovered


async def test_a_step_read_back_is_the_step_that_was_sampled() -> None:
    notes = Notes()
    first = Policy(say)
    groups, recovered = await collected(first, notes)
    assert recovered == 0
    second = Policy(say)
    assert await collected(second, notes) == (groups, len(first.calls))
    assert second.calls == []


async def test_of_a_step_cut_off_only_what_is_missing_is_sampled() -> None:
    notes = Notes()
    whole, _ = await collected(Policy(say), Notes())
    slow = Policy(say, delay=lambda call: 1 if call <= 5 else 100_000)
    cut = asyncio.create_task(collected(slow, notes))
    while not notes.kept:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    rest = Policy(say)
    groups, recovered = await collected(rest, notes)
    assert groups == whole
    assert recovered == 5
    assert len(rest.calls) == len(slow.calls) - 5


async def test_torn_notes_are_not_used() -> None:
    notes = Notes()
    await collected(Policy(say), notes)
    notes.kept = [(number, data[:-9]) for number, data in notes.kept] + [(1, b"")]
    policy = Policy(say)
    assert (await collected(policy, notes))[1] == 0
    assert policy.calls


async def test_a_rollout_of_other_weights_is_sampled_again() -> None:
    notes = Notes()
    old = Policy(say)
    old.version = 3
    await collected(old, notes)
    policy = Policy(say)
    groups, recovered = await collected(policy, notes)
    assert policy.calls
    assert recovered == 0
    assert {s.weight_versions.oldest for group in groups for s in group} == {0}


async def test_a_rollout_of_another_prompt_is_sampled_again() -> None:
    notes = Notes()
    await collected(Policy(say), notes)
    (number, data), *_ = notes.kept
    samples, beside = unpack_samples(data)
    other = [[count, turns, prompt + 1, round] for count, turns, prompt, round in beside]
    notes.kept = [(number, pack_samples(samples, other))]
    policy = Policy(say)
    assert (await collected(policy, notes))[1] > 0, "known, by its name"
    assert policy.calls, "and made again"


async def test_a_note_stands_under_the_highest_of_its_tickets() -> None:
    """So one may go when all its tickets are done, and is read while one is not."""
    notes = Notes()
    journal = RolloutJournal(notes, every_s=60.0)
    for number in (4, 9, 6):
        sample = sample_of(
            "p", "d", "g", f"g{number}#0", 0, [1], [0], [0.0], [-1], Status.COMPLETED
        )
        journal.keep(number, Finished((sample,), (), 0))
    await journal.flush()
    assert [number for number, _ in notes.kept] == [9]
    assert sorted(await journal.read(7)) == ["g4#0", "g6#0", "g9#0"]
    assert await journal.read(10) == {}


@pytest.mark.parametrize("status", [Status.ABORTED, Status.FAILED])
async def test_what_failed_is_tried_again_unless_a_step_took_it(status: Status) -> None:
    """The step would be another with it than without it."""
    notes = Notes()
    samples, _ = await collected(Policy(say), notes)
    failed = samples[0][1]
    failed.status = status
    journal = RolloutJournal(notes)
    journal.keep(0, Finished((failed,), (), prompt_checksum(ids("<0>"))))
    await journal.flush()
    policy = Policy(say)
    assert (await collected(policy, notes))[1] == 11
    assert len(policy.calls) == 1
    policy = Policy(say)
    assert (await collected(policy, notes, [Take(1, 0, (0, 1, 2))]))[1] == 12
    assert policy.calls == []


async def test_a_flush_waits_for_what_was_kept_before_it_alone() -> None:
    """Others go on finishing while it waits."""
    notes = Notes()
    journal = RolloutJournal(notes)

    async def keep_on() -> None:
        for number in range(10**6):
            sample = sample_of("p", "d", "g", "g#0", 0, [1], [0], [0.0], [-1], Status.COMPLETED)
            journal.keep(number, Finished((sample,), (), 0))
            await asyncio.sleep(0)

    keeping = asyncio.create_task(keep_on())
    await asyncio.sleep(0)
    await asyncio.wait_for(journal.flush(), 5)
    assert notes.kept
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await journal.flush()


async def test_a_failing_store_is_an_error() -> None:
    with pytest.raises(OSError, match="disk full"):
        await collected(Policy(say), Notes(error=OSError("disk full")))


async def swept(policy: Policy, notes: Notes, label: str = "") -> list[list[Rollout]]:
    journal = RolloutJournal(notes, every_s=0.02)
    kept = await KeptRollouts.open(journal, policy.version)
    live = domain("d", float)
    problems = live.curriculum.problems("heldout", 6, 0)
    try:
        return await sample_rollouts(
            roller(policy), live, problems, samples=2, temperature=1.0, kept=kept, label=label
        )
    finally:
        await journal.flush()


async def test_a_note_that_was_not_written_before_anyone_waited_fails_the_next_flush() -> None:
    notes = Notes(error=OSError("input/output error"))
    journal = RolloutJournal(notes)
    sample = sample_of("p", "d", "g", "g#0", 0, [1], [0], [0.0], [-1], Status.COMPLETED)
    journal.keep(1, Finished((sample,), (), 0))
    await asyncio.sleep(0.2)
    notes.error = None
    journal.keep(1, Finished((sample,), (), 0))
    with pytest.raises(OSError, match="input/output error"):
        await journal.flush()


async def test_a_sweep_that_was_cut_off_goes_on_with_transcripts_as_they_were() -> None:
    notes = Notes()
    whole = await swept(Policy(say), Notes())
    slow = Policy(say, delay=lambda call: 1 if call <= 5 else 100_000)
    cut = asyncio.create_task(swept(slow, notes))
    while not notes.kept:
        await asyncio.sleep(0.001)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    rest = Policy(say)
    assert await swept(rest, notes) == whole
    assert len(rest.calls) == 7


async def test_sweeps_of_other_weights_or_another_label_share_no_rollout() -> None:
    notes = Notes()
    await swept(Policy(say), notes, "score")
    other = Policy(say)
    other.version = 1
    assert {number for number, _ in notes.kept} == {0}
    for policy, label in ((other, "score"), (Policy(say), "greedy")):
        await swept(policy, notes, label)
        assert len(policy.calls) == 12


async def test_finished_rollouts_share_notes_and_a_flush_does_not_wait() -> None:
    notes = Notes()
    journal = RolloutJournal(notes, every_s=60.0)
    kept = await KeptRollouts.open(journal, 0)
    live = domain("d", float)
    problems = live.curriculum.problems("heldout", 6, 0)
    await sample_rollouts(
        roller(Policy(say)), live, problems, samples=2, temperature=1.0, kept=kept
    )
    async with asyncio.timeout(5):
        await journal.flush()
    assert len(notes.kept) == 1
    assert len(await journal.read(0)) == 12


async def test_a_sweep_has_as_many_rollouts_under_way_as_its_window_however_many_problems() -> None:
    """Two sweeps share the window of their servers: 8 rollouts for 4 turns at once."""
    policy = Policy(say, delay=lambda call: call % 5)
    most = under_way = 0

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        made = await policy.generate(prompt_ids, sampling)
        under_way -= 1
        return made

    using = Roller(generate=generate, chat=CharChat(), context_length=200, seed=0, window=Window(4))
    kept = await KeptRollouts.open(RolloutJournal(Notes()), policy.version)
    live = domain("d", float)
    problems = live.curriculum.problems("heldout", 40, 0)
    sweeps = [
        sample_rollouts(using, live, problems, samples=n, temperature=1.0, kept=kept, label=str(n))
        for n in (2, 3)
    ]
    made = await asyncio.gather(*sweeps)
    of_problems = [[r.samples[0].problem_id for r in group] for group in made[1]]
    assert of_problems == [[problem.id] * 3 for problem in problems]
    assert len(policy.calls) == 40 * 5
    assert 6 <= most <= 8


async def test_an_error_of_the_engine_ends_a_sweep_and_all_that_it_has_under_way() -> None:
    asked = 0
    ended = asyncio.Event()

    async def generate(prompt_ids: TokenIds, sampling: Sampling) -> Generation:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise EngineError("the servers are gone")
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    using = Roller(generate=generate, chat=CharChat(), context_length=200, seed=0, window=Window(4))
    kept = await KeptRollouts.open(RolloutJournal(Notes()), 0)
    live = domain("d", float)
    problems = live.curriculum.problems("heldout", 40, 0)
    with pytest.raises(EngineError, match="the servers are gone"):
        await sample_rollouts(using, live, problems, samples=2, temperature=1.0, kept=kept)
    assert ended.is_set()
    assert asked <= 8
