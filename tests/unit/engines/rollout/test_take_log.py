"""What a step trains on is written down before it does, and a repeated step takes the same."""

from __future__ import annotations

import pytest

from engines.rollout.records.take_log import Take, TakeLog
from tests.parts.loop_parts import Notes, Parts, informative

pytestmark = pytest.mark.unit


async def test_each_take_is_written_down_before_the_update():
    parts = Parts(informative())
    seen = []
    step = parts.trainer.rl_step

    async def rl_step(inputs):
        seen.append(len(parts.notes.kept["takes"]))
        return await step(inputs)

    parts.trainer.rl_step = rl_step
    await parts.run(3)
    assert seen == [1, 2, 3]
    log = await read(parts.notes)
    assert [log.of(n) for n in (1, 2, 3, 4)] == [
        Take(1, 0, (0, 1, 2, 3)), Take(2, 1, (4, 5, 6, 7)), Take(3, 2, (8, 9, 10, 11)), None,
    ]  # fmt: skip


async def test_a_repeated_step_takes_what_the_log_says_and_writes_nothing_twice():
    first = Parts(informative())
    await first.takes_written([2, 0, 3, 1])
    parts = Parts(informative(), notes=first.notes)
    await parts.loop.takes.recover(1)
    (result,) = await parts.run(1)
    assert [g.ticket for g in result.groups] == [2, 0, 3, 1]
    assert len(parts.notes.kept["takes"]) == 1


async def test_a_take_whose_groups_are_not_all_there_is_made_anew():
    first = Parts(informative())
    await first.takes_written([0, 1, 2, 9])
    answers = informative()
    parts = Parts(lambda p, s: "0" if "9" in p else answers(p, s), notes=first.notes)
    await parts.loop.takes.recover(1)
    (result,) = await parts.run(1)
    assert result.sampled.filtered == {"equal_rewards": 1}, "ticket 9 teaches nothing now"
    assert [g.ticket for g in result.groups] == [0, 1, 2, 3]
    assert (await read(parts.notes)).of(1) == Take(1, 0, (0, 1, 2, 3))


async def test_an_attempt_that_goes_another_way_leaves_no_take_of_the_way_before():
    """Steps 2 and 3 of the first attempt; the second takes other groups in step 2, and is killed
    before step 3. A third one that followed step 3 would mix weights of both."""
    notes = Notes()
    first, second = TakeLog(notes), TakeLog(notes)
    for step in (1, 2, 3):
        await first.write(Take(step, step - 1, (step,)))
    await second.recover(1)
    await second.forget(2)
    assert second.of(1) == Take(1, 0, (1,))
    assert second.of(2) is None
    assert second.of(3) is None
    await second.write(Take(2, 1, (5,)))
    third = await read(notes)
    assert third.from_step(1) == [Take(1, 0, (1,)), Take(2, 1, (5,))]


async def test_a_take_that_was_cut_off_is_none():
    notes = Notes()
    notes.note("takes", 1, b"[1,0,[4")
    assert (await read(notes)).of(1) is None


async def read(notes):
    log = TakeLog(notes)
    await log.recover(1)
    return log


async def test_the_artifact_says_what_all_attempts_took(tmp_path):
    notes = Notes()
    first, second = TakeLog(notes), TakeLog(notes)
    await first.write(Take(1, 0, (1, 0)))
    await first.write(Take(2, 1, (2, 4)))
    await second.write(Take(2, 1, (2, 3)))  # the log of the first was torn
    await second.write(Take(3, 2, ()))
    await second.export(tmp_path)
    assert (tmp_path / "takes.jsonl").read_text().splitlines() == [
        '{"step":1,"version":0,"tickets":[1,0]}',
        '{"step":2,"version":1,"tickets":[2,3]}',
        '{"step":3,"version":2,"tickets":[]}',
    ]
