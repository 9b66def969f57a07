"""What an RL stage writes down: record, checkpoints, logs, and the end of the stage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.rollout.records.journals import Finished, RolloutJournal
from engines.rollout.records.take_log import Take, TakeLog, TrainedRollouts
from engines.rollout.sources import Pick, TicketResult
from engines.rollout.tickets import ChosenTickets
from engines.types import Message
from infra.timeline import CHECKPOINTS, SERVERS, TICKETS, TRAINER, Timeline, write_trace
from tasks.rl.stage_record import RlRecord
from tasks.training_record import Series
from tests.parts.rollout_parts import domain
from tests.programs.growth.made_up import (
    NO_SERVERS,
    checkpoints_in,
    group_of,
    new_folder,
    record_of,
    sample_of,
    step_result,
)
from tests.programs.growth.meter import Figure, Meter, folder_bytes
from tests.programs.growth.registry import HISTORY, WORK, grows

TOKENS = 32
"""of a sample, where its length does not matter"""
AGAIN = 20
"""how often what is quick is done"""


def _observed(record: RlRecord, steps: int, tokens: int = TOKENS) -> None:
    """Steps that follow those that the record has."""
    for step in range(record.step + 1, record.step + steps + 1):
        record.observe(step_result(step, tokens), NO_SERVERS, {})


def _saved(record: RlRecord, folder: Path) -> Path:
    """A checkpoint's folder as the record leaves it."""
    record.save(new_folder(folder))()
    return folder


@grows("a step into the record", "steps before", (100, 400, 1600), cpu_s=HISTORY, memory=HISTORY)
def a_step(size: int, meter: Meter) -> None:
    record = record_of(checkpoints_in(meter.folder), size * 2)
    _observed(record, size)
    with meter.counting():
        _observed(record, AGAIN)


@grows(
    "the record into a checkpoint", "steps before", (400, 1600, 6400), cpu_s=HISTORY, bytes=HISTORY
)
def record_saved(size: int, meter: Meter) -> None:
    record = record_of(checkpoints_in(meter.folder), size * 2)
    result = step_result(1, TOKENS)
    for step in range(1, size):
        result.step = result.version = step
        record.observe(result, NO_SERVERS, {})
        if step % 100 == 0:
            _saved(record, meter.folder / f"c{step}")
    _saved(record, meter.folder / "before")
    _observed(record, 1)
    with meter.counting():
        for n in range(AGAIN):
            _saved(record, meter.folder / f"again-{n}")
    meter.count(Figure.BYTES, folder_bytes(meter.folder / "again-0"))


@grows("a checkpoint into the store", "checkpoints before", (40, 160, 640), cpu_s=HISTORY,
       calls=HISTORY)  # fmt: skip
def checkpoint_kept(size: int, meter: Meter) -> None:
    checkpoints = checkpoints_in(meter.folder)

    def save(step: int) -> None:
        folder = new_folder(meter.folder / f"c{step}")
        (folder / "state.json").write_text("{}")
        checkpoints.note("shown", step, b"rows")
        checkpoints.save(step, folder, 0.5, step * 3)

    for step in range(1, size + 1):
        save(step)
    with meter.counting():
        for step in range(size + 1, size + AGAIN + 1):
            save(step)


@grows("the end of a stage: rollouts.parquet", "checkpoints", (50, 200, 800), cpu_s=WORK,
       calls=WORK, memory=WORK)  # fmt: skip
def end_of_stage(size: int, meter: Meter) -> None:
    record = record_of(checkpoints_in(meter.folder), size)
    for step in range(1, size + 1):
        _observed(record, 1)
        _saved(record, meter.folder / f"c{step}")
    with meter.counting():
        record.write_rollouts(new_folder(meter.folder / "out"))


@grows("rollouts.parquet of long steps", "steps", (30, 120, 240), bytes=HISTORY)
def rollouts_kept(size: int, meter: Meter) -> None:
    """65,536 tokens a step are shown, so the bound on all of them is reached after 61 steps. Then
    every second one is kept, or fourth: the two larger sizes have as many since the last thinning.
    """
    record = record_of(checkpoints_in(meter.folder), size)
    out = new_folder(meter.folder / "out")
    for step in range(1, size + 1):
        _observed(record, 1, tokens=16_384)
        if step % 10 == 0:
            _saved(record, meter.folder / f"c{step}")
    record.write_rollouts(out)
    meter.count(Figure.BYTES, folder_bytes(out))


@grows("keep_rollouts: the export", "steps", (50, 200, 800), cpu_s=WORK, calls=WORK,
       memory=HISTORY)  # fmt: skip
def trained_rollouts(size: int, meter: Meter) -> None:
    checkpoints = checkpoints_in(meter.folder)
    kept = TrainedRollouts(checkpoints)
    out = new_folder(meter.folder / "out")

    async def train() -> None:
        for step in range(1, size + 1):
            await kept.keep(step, [group_of(step, step - 1, 2048)])

    async def export() -> None:
        taken = [Take(step, step - 1, (step,)) for step in range(1, size + 1)]
        assert await kept.export(out, taken) == []

    asyncio.run(train())
    with meter.counting():
        asyncio.run(export())


@grows("the take log, recovered", "steps", (200, 800, 3200), cpu_s=WORK, calls=WORK)
def take_log(size: int, meter: Meter) -> None:
    checkpoints = checkpoints_in(meter.folder)

    async def write() -> None:
        log = TakeLog(checkpoints)
        for step in range(1, size + 1):
            await log.write(Take(step, step - 1, tuple(range(64))))

    asyncio.run(write())
    with meter.counting():
        asyncio.run(TakeLog(checkpoints).recover(size // 2))


@grows("the journal of rollouts, read", "rollouts", (250, 1000, 4000), cpu_s=WORK, memory=WORK)
def journal(size: int, meter: Meter) -> None:
    checkpoints = checkpoints_in(meter.folder)
    turn = Message("assistant", "x" * 512)

    async def write() -> None:
        kept = RolloutJournal(checkpoints)
        for number in range(size):
            sample = sample_of(number, 0, 0, 512)
            kept.keep(number // 8, Finished((sample,), (turn,), 1))
            if number % 8 == 7:
                await kept.flush()
        await kept.flush()

    meter.apart(lambda: asyncio.run(write()))
    with meter.counting():
        found = asyncio.run(RolloutJournal(checkpoints).read(0))
    assert len(found) == size


@grows("curves in a checkpoint", "steps before", (1000, 4000, 16_000), cpu_s=HISTORY,
       bytes=HISTORY)  # fmt: skip
def series(size: int, meter: Meter) -> None:
    curves = Series(("entropy", "grad_norm"))
    for step in range(1, size + 1):
        curves.observe(step, {"entropy": step / 7, "grad_norm": step / 11})
    with meter.counting():
        texts = [json.dumps(curves.state()) for _ in range(AGAIN)]
    meter.count(Figure.BYTES, len(texts[0]))


@grows("the timeline in a checkpoint", "tickets before", (4000, 40_000, 400_000), cpu_s=HISTORY,
       bytes=HISTORY)  # fmt: skip
def timeline(size: int, meter: Meter) -> None:
    kept = _timeline(size)
    with meter.counting():
        kept.save(meter.folder)()
    meter.count(Figure.BYTES, folder_bytes(meter.folder))


@grows("the trace of a stage", "tickets", (4000, 40_000, 400_000), cpu_s=HISTORY, bytes=HISTORY)
def trace(size: int, meter: Meter) -> None:
    kept = _timeline(size)
    with meter.counting():
        write_trace(kept, meter.folder)
    meter.count(Figure.BYTES, folder_bytes(meter.folder))


def _timeline(tickets: int) -> Timeline:
    made = Timeline()
    for number in range(tickets):
        made.add(TICKETS, f"ticket {number}", number / 2, 3000.0, {"problem": f"d/rl/{number}"})
        if number % 8 == 0:
            for lane in (TRAINER, SERVERS, CHECKPOINTS):
                made.add(lane, "work", number / 2, 3.0, {"step": number // 8})
    return made


class _Learner:
    """A data source that learns."""

    def pick(self, number: int) -> Pick:
        return Pick("d")

    def told(self, result: TicketResult) -> None: ...


@grows("a learning data source in a checkpoint", "tickets before", (1000, 8000, 64_000),
       cpu_s=HISTORY, bytes=HISTORY)  # fmt: skip
def learning_source(size: int, meter: Meter) -> None:
    parts: list[Any] = [domain("d", float)]
    source = ChosenTickets(
        parts, split="rl", seed=1, start=0, source=_Learner(), limit=10**9,
        notes=checkpoints_in(meter.folder),
    )  # fmt: skip
    _tell(source, size - 64)
    source.state(source.next)  # the checkpoint before
    source.take_unsaved()()
    _tell(source, 64)
    with meter.counting():
        state = json.dumps(source.state(source.next))
        source.take_unsaved()()
    meter.count(Figure.BYTES, len(state))


def _tell(source: ChosenTickets, tickets: int) -> None:
    """Rounds of tickets that were drawn and rolled."""
    groups = [group_of(0, 0, TOKENS) for _ in range(64)]
    for _ in range(tickets // 64):
        drawn: Sequence[Any] = source.draw(64)
        for group, ticket in zip(groups, drawn, strict=True):
            group.ticket = ticket.number
        source.tell(groups)
