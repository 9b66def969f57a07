"""Draws a recipe as an inline SVG: its stages, with experts as tributaries of one model.

base ─▶ sft ─▶ rl ─┐
  └───▶ sft ─▶ rl ─┴─▶ distill ─▶ sft ─▶ rl ─▶ evaluate

Drawn twice: from left to right for wide pages, from top to bottom for phones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from flows.plan import SCORING

_MARKS = {
    "completed": "✓",
    "cached": "⟲",
    "running": "▶",
    "failed": "✕",
    "stopped": "■",
    "pending": "·",
}
_MOST_LETTERS = 20


@dataclass(frozen=True, slots=True)
class RiverStage:
    """What the picture needs to know of a stage."""

    name: str
    kind: str
    state: str
    seconds: str
    """as it is shown; empty while it has not run"""
    expert: str
    inputs: Sequence[str]
    """names of stages"""
    about: str = ""
    """shown when a pointer rests on it"""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of one drawing, in pixels."""

    is_vertical: bool
    width: float
    height: float
    gap_across: float
    """between lanes"""
    gap_along: float
    """between columns, which are rows where it is vertical"""


_WIDE = _Shape(False, 126, 54, 18, 34)
_TALL = _Shape(True, 102, 54, 8, 32)


def river(stages: Sequence[RiverStage]) -> str:
    """Two SVG elements, of which the style sheet shows one; empty without stages."""
    if not stages:
        return ""
    return _drawn(stages, _WIDE, "river wide") + _drawn(stages, _TALL, "river tall")


def _drawn(stages: Sequence[RiverStage], shape: _Shape, name: str) -> str:
    places = _places(stages)
    width = 1 + max(x for x, _ in _corners(places, shape)) + shape.width
    height = 1 + max(y for _, y in _corners(places, shape)) + shape.height
    at = {n: _corner(place, shape) for n, place in places.items()}
    flows = _flows(stages)
    edges = [
        _detour(at[source], at[stage.name], width if shape.is_vertical else height, shape)
        if _is_blocked(places[source], places[stage.name], places)
        else _edge(at[source], at[stage.name], 1.5 + 1.5 * flows[source], shape)
        for stage in stages
        for source in _shown_inputs(stage, stages)
    ]
    if any("detour" in edge for edge in edges):
        width, height = (width + 18, height) if shape.is_vertical else (width, height + 18)
    nodes = [_node(stage, at[stage.name], shape) for stage in stages]
    said = f"{len(stages)} stages: " + ", ".join(f"{s.name} {s.state}" for s in stages)
    return (
        f'<svg class="{name}" viewBox="-1 -1 {width + 1:g} {height + 1:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="{escape(said)}">'
        f"{''.join(edges)}{''.join(nodes)}</svg>"
    )


def _places(stages: Sequence[RiverStage]) -> dict[str, tuple[int, float]]:
    """Column and lane of each: after all its inputs; what belongs to no expert in the middle. An
    expert's stage without inputs, as `admit` is, stands before the first that needs it."""
    known = {stage.name for stage in stages}
    columns: dict[str, int] = {}
    for stage in stages:  # a plan's inputs stand before what needs them
        columns[stage.name] = 1 + max(
            (columns[source] for source in stage.inputs if source in known), default=-1
        )
    alone = {s.name for s in stages if s.expert and not known & set(s.inputs)}
    for name in alone:
        followers = [columns[other.name] for other in stages if name in other.inputs]
        columns[name] = max(0, min(followers, default=1) - 1)
    experts = list(dict.fromkeys(stage.expert for stage in stages if stage.expert))
    middle = (len(experts) - 1) / 2 if experts else 0.0
    taken: defaultdict[int, list[float]] = defaultdict(list)
    places: dict[str, tuple[int, float]] = {}
    for stage in sorted(stages, key=lambda s: (not s.expert, s.name in alone)):
        column = columns[stage.name]
        lane = float(experts.index(stage.expert)) if stage.expert else middle
        while any(abs(lane - other) < 1 for other in taken[column]):
            lane = float(int(lane) + 1)
        taken[column].append(lane)
        places[stage.name] = (column, lane)
    return places


def _shown_inputs(stage: RiverStage, stages: Sequence[RiverStage]) -> list[str]:
    """The evaluation scores every version of every model: only what nothing else follows is drawn
    to it."""
    known = dict.fromkeys(s for s in stage.inputs if any(o.name == s for o in stages))
    if stage.name not in SCORING:
        return list(known)
    followed = {s for other in stages if other.name not in SCORING for s in other.inputs}
    return [source for source in known if source not in followed] or list(known)


def _flows(stages: Sequence[RiverStage]) -> Mapping[str, int]:
    """Return how many experts' work is in each stage: a river widens with its tributaries."""
    upstream: dict[str, set[str]] = {}
    for stage in stages:
        found = {stage.expert} - {""}
        for source in stage.inputs:
            found |= upstream.get(source, set())
        upstream[stage.name] = found
    return {name: max(1, len(found)) for name, found in upstream.items()}


def _corner(place: tuple[int, float], shape: _Shape) -> tuple[float, float]:
    column, lane = place
    if shape.is_vertical:
        return lane * (shape.width + shape.gap_across), column * (shape.height + shape.gap_along)
    return column * (shape.width + shape.gap_along), lane * (shape.height + shape.gap_across)


def _corners(places: Mapping[str, tuple[int, float]], shape: _Shape) -> list[tuple[float, float]]:
    return [_corner(place, shape) for place in places.values()]


def _edge(
    source: tuple[float, float], target: tuple[float, float], width: float, shape: _Shape
) -> str:
    if shape.is_vertical:
        x1, y1 = source[0] + shape.width / 2, source[1] + shape.height
        x2, y2 = target[0] + shape.width / 2, target[1]
        bend = min(shape.gap_along, y2 - y1) * 0.6
        path = f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    else:
        x1, y1 = source[0] + shape.width, source[1] + shape.height / 2
        x2, y2 = target[0], target[1] + shape.height / 2
        bend = max(shape.gap_along * 0.6, (x2 - x1) * 0.5)
        path = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
    return f'<path class="flow" d="{path}" stroke-width="{width:g}"/>'


def _is_blocked(
    source: tuple[int, float], target: tuple[int, float], places: Mapping[str, tuple[int, float]]
) -> bool:
    """Return whether a stage stands on the straight way."""
    return any(
        source[0] < column < target[0] and (lane in (source[1], target[1]))
        for column, lane in places.values()
    )


def _detour(
    source: tuple[float, float], target: tuple[float, float], edge: float, shape: _Shape
) -> str:
    """Around all stages, along the lower or right `edge` of the picture."""
    if shape.is_vertical:
        y1, y2 = source[1] + shape.height / 2, target[1] + shape.height / 2
        x1, x2, out = source[0] + shape.width, target[0] + shape.width, edge + 12
        path = f"M{x1:g} {y1:g}C{out:g} {y1:g} {out:g} {y1:g} {out:g} {y1 + 24:g}V{y2 - 24:g}"
        path += f"C{out:g} {y2:g} {out:g} {y2:g} {x2:g} {y2:g}"
    else:
        x1, x2 = source[0] + shape.width / 2, target[0] + shape.width / 2
        y1, y2, out = source[1] + shape.height, target[1] + shape.height, edge + 12
        path = f"M{x1:g} {y1:g}C{x1:g} {out:g} {x1:g} {out:g} {x1 + 24:g} {out:g}H{x2 - 24:g}"
        path += f"C{x2:g} {out:g} {x2:g} {out:g} {x2:g} {y2:g}"
    return f'<path class="flow detour" d="{path}" stroke-width="2"/>'


def _node(stage: RiverStage, corner: tuple[float, float], shape: _Shape) -> str:
    x, y = corner
    name = stage.name if len(stage.name) <= _MOST_LETTERS else stage.name[: _MOST_LETTERS - 1] + "…"
    size = min(13.0, (shape.width - 14) / max(len(name), 1) / 0.56)
    mark = _MARKS.get(stage.state, "")
    below = stage.seconds or stage.state  # there is room for one of them; the mark says the state
    return (
        f'<a href="#stage-{escape(stage.name)}"><g class="node {escape(stage.state)}">'
        f"<title>{escape(stage.about)}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{shape.width:g}" height="{shape.height:g}" rx="9"/>'
        f'<text class="name" x="{x + 10:g}" y="{y + 24:g}" font-size="{size:.3g}">'
        f"{escape(name)}</text>"
        f'<text class="state" x="{x + 10:g}" y="{y + 43:g}" font-size="11">'
        f"{mark} {escape(below)}</text></g></a>"
    )
