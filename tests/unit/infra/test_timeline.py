"""What a timeline keeps, and the trace that is made of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from infra.timeline import (
    JUDGES,
    TAKES,
    TICKETS,
    TRACE_FILE,
    TRAINER,
    Timeline,
    mark,
    read_trace,
    recording,
    span,
    took_place,
    write_trace,
)

pytestmark = pytest.mark.unit


async def test_tasks_started_while_it_records_are_recorded() -> None:
    timeline = Timeline()

    async def ticket(number: int) -> None:
        with span(TICKETS, f"ticket {number}", problem="p"):
            await asyncio.sleep(0.01)
            assert timeline.under_way(TICKETS) == 2 - number

    with recording(timeline):
        await asyncio.gather(ticket(0), ticket(1))
        mark(TAKES, "step 1", tickets="0 1")
    mark(TAKES, "after the recording")
    assert [e.name for e in timeline.events] == ["ticket 0", "ticket 1", "step 1"]
    first = timeline.events[0]
    assert first.seconds is not None
    assert first.seconds >= 0.01
    assert (first.lane, first.about) == (TICKETS, {"problem": "p"})
    assert timeline.events[2].seconds is None
    assert timeline.under_way(TICKETS) == 0


def test_a_lane_keeps_its_newest_events_and_no_lane_takes_anothers_room() -> None:
    timeline = Timeline(most=3)
    for number in range(5):
        timeline.add(JUDGES, f"{number}", float(number), 1.0, {})
    timeline.add(TRAINER, "train", 0.0, 1.0, {})
    assert [e.name for e in timeline.events] == ["2", "3", "4", "train"]
    assert timeline.dropped == 2


def test_a_count_keeps_changes_and_halves_its_points_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("infra.timeline.now", lambda: clock[0])
    timeline = Timeline(most=4)
    for value in (1, 1, 2, 3, 4, 5):
        timeline.count({"depth": value})
        clock[0] += 1.0
    # 100: 1, 102: 2, 103: 3, 104: 4, 105: 5 are too many; one in 2 x 5 s / 4 from then on
    assert [(p.at, p.value) for p in timeline.counts["depth"]] == [(100, 1), (103, 3), (105, 5)]
    assert timeline.dropped == 2
    for value in (6, 7, 8):
        timeline.count({"depth": value})
        clock[0] += 1.0
    assert [(p.at, p.value) for p in timeline.counts["depth"]][3:] == [(108, 8)]


def test_a_later_attempt_goes_on_with_what_the_checkpoint_has(tmp_path: Path) -> None:
    first = Timeline(most=3)
    with recording(first):
        for number in range(4):
            took_place(TRAINER, f"train {number}", 100.0 + number, 0.5, step=number)
        first.count({"depth": 3})
    first.save(tmp_path)()
    second = Timeline(most=3)
    second.restore(tmp_path)
    assert (second.part, second.dropped) == (2, 1)
    second.add(TRAINER, "train 4", 200.0, 0.5, {})
    assert [(e.name, e.part) for e in second.events] == [
        ("train 2", 1), ("train 3", 1), ("train 4", 2),
    ]  # fmt: skip
    assert second.events[0].about == {"step": 2}
    second.count({"depth": 3})
    assert [p.part for p in second.counts["depth"]] == [1, 2]


def test_a_trace_has_a_thread_for_events_that_overlap_and_reads_back(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(TICKETS, "ticket 0", 1000.0, 2.0, {"problem": "p/0"})
    timeline.add(TICKETS, "ticket 1", 1001.0, 2.5, {"problem": "p/1"})
    timeline.add(TICKETS, "ticket 2", 1002.0, 1.0, {"problem": "p/2"})
    timeline.add(TAKES, "step 1", 1003.0, None, {"tickets": "0 1"})
    timeline.dropped = 7
    write_trace(timeline, tmp_path)
    content = json.loads((tmp_path / TRACE_FILE).read_text())
    threads = {
        e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"
    }
    spans = [e for e in content["traceEvents"] if e["ph"] == "X"]
    assert [(threads[e["tid"]], e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("tickets", "ticket 0", 0, 2_000_000),
        ("tickets", "ticket 2", 2_000_000, 1_000_000),
        ("tickets 2", "ticket 1", 1_000_000, 2_500_000),
    ]
    (moment,) = [e for e in content["traceEvents"] if e["ph"] == "i"]
    assert (moment["ts"], moment["args"]) == (3_000_000, {"tickets": "0 1"})
    trace = read_trace((tmp_path / TRACE_FILE).read_bytes())
    assert {(e.lane, e.name, e.began, e.seconds) for e in trace.events} == {
        (TICKETS, "ticket 0", 0.0, 2.0),
        (TICKETS, "ticket 1", 1.0, 2.5),
        (TICKETS, "ticket 2", 2.0, 1.0),
        (TAKES, "step 1", 3.0, None),
    }
    assert trace.dropped == 7
