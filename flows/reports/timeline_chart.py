"""Draws a stage's timeline: what its trainer and its servers did, and what waited.

trainer          ▒▒▒████▓▒▒▒████▓      wait, train, publish
servers          ██████   ██████       busy
tickets rolling  ◢█◣     ◢█◣
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from infra.timeline import (
    CHECKPOINTS,
    EVALUATION,
    SERVERS,
    TRACE_FILE,
    TRAINER,
    Event,
    Point,
    Trace,
)

_MOST_STEPS = 40
"""steps in one picture: of more, each would be too narrow to see"""
_WIDTH, _LEFT, _RIGHT = 900.0, 120.0, 60.0
_LANE, _GAP, _AXIS = 22.0, 6.0, 20.0
_COLOURS = {
    (TRAINER, "wait"): "var(--wait)",
    (TRAINER, "train"): "var(--c1)",
    (TRAINER, "publish"): "var(--c2)",
    (TRAINER, "checkpoint"): "var(--c4)",
    (TRAINER, "hold"): "var(--c6)",
    (SERVERS, "busy"): "var(--c3)",
}
_OF_LANE = {EVALUATION: "var(--c6)", CHECKPOINTS: "var(--c4)"}
_OTHER = "var(--muted)"
_BUSY = ("train", "publish")
"""of the trainer"""


@dataclass(frozen=True, slots=True)
class IdleShares:
    """Shares of the time between a part's first and last event, summed over parts; 0 to 1."""

    trainer: float
    """neither training nor publishing"""
    servers: float
    """no turn under way"""


def idle_shares(trace: Trace) -> IdleShares:
    """Return the idle shares of all that the trace has kept."""
    total = trained = served = 0.0
    for begin, end, events in _parts(trace):
        total += end - begin
        trained += _covered((e for e in events if e.lane == TRAINER and e.name in _BUSY), begin)
        served += _covered((e for e in events if e.lane == SERVERS), begin)
    total = max(total, 1e-9)
    return IdleShares(1 - trained / total, 1 - served / total)


def timeline_picture(trace: Trace) -> str:
    """Return an SVG with a line of text above and below it."""
    if not any(event.lane == TRAINER for event in trace.events):
        return "<p>none</p>"
    idle = idle_shares(trace)
    shown, of_steps = _newest(_end_to_end(trace))
    steps = sum(e.name == "train" for e in shown.events if e.lane == TRAINER)
    what = "all" if steps == of_steps else f"the last {steps} of {of_steps}"
    more = f"; {trace.dropped} older events were not kept" if trace.dropped else ""
    return (
        f"<p>Idle: trainer {idle.trainer:.0%}, servers {idle.servers:.0%}. The picture shows"
        f" {what} steps{more}. Open the artifact's <code>{TRACE_FILE}</code> in ui.perfetto.dev"
        f" for each ticket.</p>{_legend()}{_svg(shown)}"
    )


def _parts(trace: Trace) -> Iterable[tuple[float, float, Sequence[Event]]]:
    """Begin, end and events of each part. Lanes do not keep equally much, so a part begins where
    all that are compared have something."""
    for part in sorted({event.part for event in trace.events}):
        events = [e for e in trace.events if e.part == part]
        firsts = [
            min((e.began for e in events if e.lane == lane), default=None)
            for lane in ((TRAINER, SERVERS) if trace.dropped else (TRAINER,))
        ]
        known = [first for first in firsts if first is not None]
        if known:
            yield max(known), max(map(_end, events)), events


def _end(event: Event) -> float:
    return event.began + (event.seconds or 0.0)


def _covered(events: Iterable[Event], since: float) -> float:
    """Seconds in which at least one of the events took place."""
    covered, reached = 0.0, since
    for event in sorted(events, key=lambda e: e.began):
        covered += max(0.0, _end(event) - max(event.began, reached))
        reached = max(reached, _end(event))
    return covered


def _end_to_end(trace: Trace) -> Trace:
    """The parts one after the other, without the time between them, and from 0 on."""
    events: list[Event] = []
    counts: dict[str, list[Point]] = {name: [] for name in trace.counts}
    shift = 0.0
    for begin, end, mine in _parts(trace):
        part = mine[0].part
        moved = shift - begin
        events += [replace(e, began=e.began + moved) for e in mine if e.began >= begin]
        for name, points in trace.counts.items():
            counts[name] += [
                replace(p, at=max(p.at, begin) + moved)
                for p in points
                if p.part == part and p.at <= end
            ]
        shift += end - begin
    return replace(trace, events=events, counts=counts)


def _newest(trace: Trace) -> tuple[Trace, int]:
    """The last steps, from 0 on; and how many there are in all."""
    trained = [e for e in trace.events if e.lane == TRAINER and e.name == "train"]
    if len(trained) <= _MOST_STEPS:
        return trace, len(trained)
    since = _end(sorted(trained, key=lambda e: e.began)[-_MOST_STEPS - 1])
    events = [e for e in trace.events if e.began >= since]
    counts: dict[str, list[Point]] = {}
    for name, points in trace.counts.items():
        before = [replace(p, at=since) for p in points if p.at < since][-1:]
        kept = before + [p for p in points if p.at >= since]
        counts[name] = [replace(p, at=p.at - since) for p in kept]
    moved = [replace(e, began=e.began - since) for e in events]
    return replace(trace, events=moved, counts=counts), len(trained)


def _legend() -> str:
    items = [
        f'<span><i style="background:{colour}"></i>{name}</span>'
        for (_, name), colour in _COLOURS.items()
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def _svg(trace: Trace) -> str:
    length = max(max(map(_end, trace.events)), 1e-9)
    scale = (_WIDTH - _LEFT - _RIGHT) / length
    lanes = [lane for lane in (TRAINER, SERVERS, EVALUATION, CHECKPOINTS) if _of(trace, lane)]
    rows = [_lane(lane, place, _of(trace, lane), scale) for place, lane in enumerate(lanes)]
    counts = {name: points for name, points in trace.counts.items() if points}
    for place, (name, points) in enumerate(counts.items(), len(lanes)):
        rows.append(_area(name, place, points, length, scale))
    bottom = (len(lanes) + len(counts)) * (_LANE + _GAP)
    rows += [_boundaries(trace, bottom, scale), _axis(length, bottom, scale)]
    size = f'viewBox="0 0 {_WIDTH:g} {bottom + _AXIS:g}"'
    return f"<svg {size} width=100% role=img>{''.join(rows)}</svg>"


def _of(trace: Trace, lane: str) -> list[Event]:
    return [e for e in trace.events if e.lane == lane and e.seconds is not None]


def _title(name: str, place: int) -> str:
    y = place * (_LANE + _GAP) + 15
    place_of_text = f'x="{_LEFT - 8:g}" y="{y:g}" font-size="12" text-anchor="end"'
    return f"<text {place_of_text}>{html.escape(name)}</text>"


def _lane(lane: str, place: int, events: Sequence[Event], scale: float) -> str:
    y = place * (_LANE + _GAP)
    drawn = [_title(lane, place)]
    for event in sorted(events, key=lambda e: e.began):
        colour = _COLOURS.get((lane, event.name)) or _OF_LANE.get(lane, _OTHER)
        seconds = event.seconds or 0.0
        told = (
            f"{event.name} {' '.join(f'{k} {v}' for k, v in event.about.items())} {seconds:.2f} s"
        )
        drawn.append(
            f'<rect x="{_LEFT + event.began * scale:.2f}" y="{y:g}" height="{_LANE:g}"'
            f' width="{max(seconds * scale, 0.4):.2f}" fill="{colour}">'
            f"<title>{html.escape(told)}</title></rect>"
        )
    return "".join(drawn)


def _area(name: str, place: int, points: Sequence[Point], length: float, scale: float) -> str:
    """Return a count over time, as steps; its highest value stands beside it."""
    base = place * (_LANE + _GAP) + _LANE
    highest = max((p.value for p in points), default=0.0)
    path = f"M{_LEFT:g} {base:g}"
    ends = [*(p.at for p in points[1:]), length]
    for point, end in zip(points, ends, strict=True):
        y = base - _LANE * point.value / max(highest, 1.0)
        path += f"L{_LEFT + point.at * scale:.1f} {y:.1f}H{_LEFT + end * scale:.1f}"
    path += f"V{base:g}Z"
    return (
        f'{_title(name, place)}<path d="{path}" fill="{_OTHER}" fill-opacity="0.6"/>'
        f'<text x="{_WIDTH - _RIGHT + 6:g}" y="{base - 7:g}" font-size="12">max {highest:g}</text>'
    )


def _boundaries(trace: Trace, bottom: float, scale: float) -> str:
    """Where an attempt ended and the next one went on."""
    begins: Mapping[int, float] = {
        part: min(e.began for e in trace.events if e.part == part)
        for part in sorted({e.part for e in trace.events})
    }
    return "".join(
        f'<path d="M{_LEFT + begins[later] * scale:.1f} 0V{bottom:g}" stroke="var(--bad)"'
        f' stroke-dasharray="4 3"><title>attempt {later}</title></path>'
        for _, later in pairwise(begins)
    )


def _axis(length: float, bottom: float, scale: float) -> str:
    drawn: list[str] = []
    for quarter in range(5):
        at = length * quarter / 4
        drawn.append(
            f'<text x="{_LEFT + at * scale:.1f}" y="{bottom + 12:g}" font-size="12"'
            f' text-anchor="{"end" if quarter == 4 else "middle"}">{at:.3g} s</text>'
        )
    return "".join(drawn)
