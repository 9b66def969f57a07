"""A timeline as a file of Chrome trace events: what ui.perfetto.dev opens and the report draws.

A process of the file is a part of the timeline (an attempt at the stage); a thread is a lane. Where
events of a lane overlap, as tickets do, it has several threads: `tickets`, `tickets 2`, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from infra.timeline import LANES, Event, Point, Timeline

TRACE_FILE = "training/trace.json"
"""of an artifact. Other in every run: it holds times"""
_ROWS = 1000
"""most threads of a lane"""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file holds. Times in seconds since its first event."""

    events: Sequence[Event]
    counts: dict[str, list[Point]]
    dropped: int
    """events and points that were not kept"""


def write_trace(timeline: Timeline, folder: Path) -> None:
    """Write `training/trace.json` into an artifact's folder."""
    zero = min(
        [*(e.began for e in timeline.events), *(kept[0].at for kept in timeline.counts.values())],
        default=0.0,
    )
    content = {
        "displayTimeUnit": "ms",
        "otherData": {"began": zero, "dropped": timeline.dropped},
        "traceEvents": [*_of_events(timeline.events, zero), *_of_counts(timeline, zero)],
    }
    path = folder / TRACE_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(orjson.dumps(content))


def read_trace(data: bytes) -> Trace:
    """The content of a `trace.json`."""
    content: dict[str, Any] = orjson.loads(data)
    names: dict[tuple[int, int], str] = {}
    events: list[Event] = []
    counts: dict[str, list[Point]] = {}
    for raw in content["traceEvents"]:
        part = raw["pid"]
        if raw["name"] == "thread_name":
            names[part, raw["tid"]] = LANES[raw["tid"] // _ROWS]
        elif raw["ph"] == "C":
            counts.setdefault(raw["name"], []).append(
                Point(raw["ts"] / 1e6, raw["args"]["value"], part)
            )
        elif raw["ph"] in ("X", "i"):
            seconds = raw["dur"] / 1e6 if raw["ph"] == "X" else None
            lane = names[part, raw["tid"]]
            events.append(Event(lane, raw["name"], raw["ts"] / 1e6, seconds, part, raw["args"]))
    return Trace(events, counts, content["otherData"]["dropped"])


def _of_events(events: Sequence[Event], zero: float) -> Iterator[dict[str, Any]]:
    for part in sorted({event.part for event in events}):
        yield _named("process_name", part, 0, f"attempt {part}")
        for place, lane in enumerate(LANES):
            mine = [e for e in events if (e.part, e.lane) == (part, lane)]
            for row, in_row in enumerate(_rows(mine)):
                thread = place * _ROWS + row
                title = f"{lane} {row + 1}" if row else lane
                yield _named("thread_name", part, thread, title)
                yield {
                    "ph": "M", "name": "thread_sort_index", "pid": part, "tid": thread,
                    "args": {"sort_index": thread},
                }  # fmt: skip
                for event in in_row:
                    yield _of_event(event, part, thread, zero)


def _of_event(event: Event, part: int, thread: int, zero: float) -> dict[str, Any]:
    began = event.began - zero
    at = _microseconds(began)
    told = {"name": event.name, "pid": part, "tid": thread, "ts": at, "args": event.about}
    if event.seconds is None:
        return told | {"ph": "i", "s": "t"}
    return told | {"ph": "X", "dur": _microseconds(began + event.seconds) - at}


def _of_counts(timeline: Timeline, zero: float) -> Iterator[dict[str, Any]]:
    for name, points in timeline.counts.items():
        for point in points:
            yield {
                "ph": "C", "name": name, "pid": point.part, "tid": 0,
                "ts": _microseconds(point.at - zero), "args": {"value": point.value},
            }  # fmt: skip


def _named(what: str, part: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": part, "tid": thread, "args": {"name": name}}


def _rows(events: Sequence[Event]) -> list[list[Event]]:
    """Events dealt out so that those of one row do not overlap."""
    rows: list[list[Event]] = []
    ends: list[float] = []
    for event in sorted(events, key=lambda e: e.began):
        new = min(len(rows), _ROWS - 1)
        row = next((n for n, end in enumerate(ends) if end <= event.began), new)
        if row == len(rows):
            rows.append([])
            ends.append(0.0)
        rows[row].append(event)
        ends[row] = event.began + (event.seconds or 0.0)
    return rows


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)
