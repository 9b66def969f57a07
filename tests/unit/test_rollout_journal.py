"""Finished rollouts are durable at once, and no later attempt samples them again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from engines.rollout.producer import Producer
from engines.rollout.records.journal import Finished, RolloutJournal
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.rollout.source import ProblemSource
from engines.types import Rollout, Sample, Sampling, Status
from tests.rollout_parts import Policy, domain, roller
from tests.sample_parts import sample_of

pytestmark = pytest.mark.unit


@dataclass
class Notes:
    """Keeps notes in memory, and may fail as a store does."""

    kept: dict[int, list[bytes]] = field(default_factory=dict)
    error: OSError | None = None

    def note(self, step: int, data: bytes) -> None:
        if self.error:
            raise self.error
        self.kept.setdefault(step, []).append(data)

    def notes(self, step: int) -> list[bytes]:
        return list(self.kept.get(step, []))


def say(prompt: str, sampling: Sampling) -> str:
    assert sampling.seed is not None
    return str(sampling.seed % 10)


def producer(policy: Policy, notes: Notes, seed: int = 0) -> Producer:
    return Producer(
        roller=roller(policy, seed=seed),
        source=ProblemSource([domain("d", float)], split="rl", seed=seed),
        groups_per_step=3,
        group_size=4,
        oversample=1.0,
        rounds=2,
        temperature=1.0,
        journal=RolloutJournal(notes),
    )


async def collected(policy: Policy, notes: Notes) -> tuple[list[list[Sample]], int]:
    batch, _ = await producer(policy, notes).collect(7, 0, [])
    return [group.samples for group in batch.groups], batch.recovered


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


async def test_another_steps_rollouts_and_torn_notes_are_not_used() -> None:
    notes = Notes()
    await collected(Policy(say), notes)
    notes.kept = {7: [notes.kept[7][0][:-9], b""], 8: notes.kept[7]}
    policy = Policy(say)
    assert (await collected(policy, notes))[1] == 0
    assert policy.calls


async def test_a_rollout_of_other_weights_or_another_prompt_is_sampled_again() -> None:
    notes = Notes()
    old = Policy(say)
    old.version = 3
    await collected(old, notes)
    policy = Policy(say)
    groups, _ = await collected(policy, notes)
    assert policy.calls
    assert {s.oldest_version for group in groups for s in group} == {0}


async def test_an_interrupted_rollout_is_not_kept_and_a_failing_store_is_an_error() -> None:
    notes = Notes()
    journal = RolloutJournal(notes)
    aborted = sample_of("p", "d", "g", "g#0", 0, [1], [0], [0.0], [-1], Status.ABORTED)
    journal.keep(1, Finished((aborted,), (), 0))
    await journal.flush()
    assert notes.kept == {}
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
    assert len(notes.kept) == 1
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
    assert len(notes.kept[0]) == 1
    assert len(await journal.finished(0, 0)) == 12
