"""The timeline of a stage: which of its parts did what when, for a person to look at.

    with recording(timeline):                 from here on, in this task and those that it starts
        with span(TRAINER, "train", step=3):  something that takes time
        mark(TAKES, "step 3")                 a moment
        timeline.count({"groups waiting": 4}) what changes now and then

Times are no results: nothing is decided by them, and no digest contains them. Where nobody records,
a span and a mark cost nothing.

`write_trace` and the like make a file of Chrome trace events of it: what ui.perfetto.dev opens and
the report draws. A process of the file is a part of the timeline (an attempt at the stage); a
thread is a lane. Where events of a lane overlap, as tickets do, it has several threads: `tickets`,
`tickets 2`, ...
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import orjson

TRAINER, SERVERS = "trainer", "servers"
TICKETS, JUDGES, TAKES = "tickets", "judges", "takes"
CHECKPOINTS, EVALUATION = "checkpoints", "evaluation"
LANES = (TRAINER, SERVERS, TICKETS, JUDGES, TAKES, EVALUATION, CHECKPOINTS)

About: TypeAlias = Mapping[str, str | int | float | bool]

_MOST = 2000
"""events of a lane, and points of a count, that are kept: all together some 10 MB"""
_FILE = "timeline.jsonl"
_EVENT, _POINT = 0, 1
_LINE = orjson.OPT_APPEND_NEWLINE
_ZERO = time.time() - time.monotonic()
TRACE_FILE = "training/trace.json"
"""of an artifact. Other in every run: it holds times"""
_ROWS = 1000
"""most threads of a lane"""


def now() -> float:
    """Unix time, by a clock that nobody sets: what follows something else begins at its end."""
    return _ZERO + time.monotonic()


@dataclass(frozen=True, slots=True)
class Event:
    """Example: Event("trainer", "train", 1790000000.5, 2.25, part=1, about={"step": 3})"""

    lane: str
    name: str
    began: float
    """Unix time"""
    seconds: float | None
    """None: a moment"""
    part: int
    about: About


@dataclass(frozen=True, slots=True)
class Point:
    """A count from now on."""

    at: float
    """Unix time"""
    value: float
    part: int


@dataclass(slots=True)
class Timeline:
    """The events of one stage, over its attempts. Of each lane the newest events are kept."""

    most: int = _MOST
    part: int = 1
    """1 for the attempt that began the stage; one more for each that continues it"""
    dropped: int = 0
    """events and points that are not kept"""
    _events: dict[str, deque[Event]] = field(default_factory=dict[str, deque[Event]])
    _points: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    _apart: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """seconds between two points of a count: twice as many whenever half of them are dropped"""
    _open: Counter[str] = field(default_factory=Counter[str])
    """spans of a lane that are not over"""

    @property
    def events(self) -> list[Event]:
        """Return the events in the order in which they ended, lane by lane."""
        return [event for lane in self._events.values() for event in lane]

    @property
    def counts(self) -> Mapping[str, list[Point]]:
        """Return the counts by name, oldest point first."""
        return self._points

    def under_way(self, lane: str) -> int:
        """Return how many spans of a lane are not over."""
        return self._open[lane]

    @contextmanager
    def span(self, lane: str, name: str, about: About) -> Generator[None]:
        """What is done in the block."""
        began = now()
        self._open[lane] += 1
        try:
            yield
        finally:
            self._open[lane] -= 1
            self.add(lane, name, began, now() - began, about)

    def add(self, lane: str, name: str, began: float, seconds: float | None, about: About) -> None:
        """`began`: Unix time."""
        kept = self._events.setdefault(lane, deque())
        kept.append(Event(lane, name, began, seconds, self.part, about))
        if len(kept) > self.most:
            kept.popleft()
            self.dropped += 1

    def count(self, values: Mapping[str, float]) -> None:
        """The counts as they are now; those that did not change are left out."""
        at = now()
        for name, value in values.items():
            kept = self._points.setdefault(name, [])
            last = kept[-1] if kept else None
            is_same = last is not None and (last.value, last.part) == (value, self.part)
            if is_same or (last is not None and at - last.at < self._apart[name]):
                continue
            kept.append(Point(at, value, self.part))
            if len(kept) > self.most:
                self.dropped += len(kept) // 2
                self._points[name] = kept[::2]
                self._apart[name] = 2 * (at - kept[0].at) / self.most

    def save(self, folder: Path) -> Callable[[], None]:
        """-> what writes into a checkpoint's folder what is recorded by now, in a thread."""
        head = {"part": self.part, "dropped": self.dropped, "apart": dict(self._apart)}
        events = [event for kept in self._events.values() for event in kept]
        points = {name: list(points) for name, points in self._points.items()}
        return lambda: _write(folder / _FILE, head, events, points)

    def restore(self, folder: Path) -> None:
        """Go on after what was recorded up to a checkpoint."""
        with (folder / _FILE).open("rb") as file:
            head: dict[str, Any] = orjson.loads(next(file))
            self.part, self.dropped = head["part"] + 1, head["dropped"]
            self._apart.update(head["apart"])
            # Line by line: as one value it would be several times what stays of it.
            for kind, name, *rest in map(orjson.loads, file):
                name = sys.intern(name)
                if kind == _EVENT:
                    self._events.setdefault(name, deque()).append(Event(name, *rest))
                else:
                    self._points.setdefault(name, []).append(Point(*rest))


def _write(
    path: Path,
    head: Mapping[str, Any],
    events: Sequence[Event],
    points: Mapping[str, Sequence[Point]],
) -> None:
    """A line for each of them."""
    with path.open("wb") as file:
        file.write(orjson.dumps(head, option=_LINE))
        for e in events:
            row = (_EVENT, e.lane, e.name, e.began, e.seconds, e.part, e.about)
            file.write(orjson.dumps(row, option=_LINE))
        for name, kept in points.items():
            for point in kept:
                row = (_POINT, name, point.at, point.value, point.part)
                file.write(orjson.dumps(row, option=_LINE))


_recorded: ContextVar[Timeline | None] = ContextVar("timeline", default=None)


@contextmanager
def recording(timeline: Timeline) -> Generator[None]:
    """What is done in the block, and in tasks that are started in it, is recorded."""
    token = _recorded.set(timeline)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def span(lane: str, name: str, **about: str | int | float | bool) -> Generator[None]:
    """What is done in the block takes place on a lane, e.g. `span(TRAINER, "train", step=3)`."""
    timeline = _recorded.get()
    with nullcontext() if timeline is None else timeline.span(lane, name, about):
        yield


def took_place(
    lane: str, name: str, began: float, seconds: float, **about: str | int | float | bool
) -> None:
    """Something that is over by now; `began`: Unix time."""
    if (timeline := _recorded.get()) is not None:
        timeline.add(lane, name, began, seconds, about)


def mark(lane: str, name: str, **about: str | int | float | bool) -> None:
    """A moment."""
    if (timeline := _recorded.get()) is not None:
        timeline.add(lane, name, now(), None, about)


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
