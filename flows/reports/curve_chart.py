"""What a policy scored while it trained: a table for the terminal, and a chart for the page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from tasks.rl.curve import Curve, ScorePoint

_WIDTH, _HEIGHT = 900.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 10.0, 10.0, 24.0
_TOPS = (0.1, 0.25, 0.5, 1.0)
"""what the vertical axis may end at"""
_MOST_SHOWN = 8
"""scores of a line of the table"""
_TRAINING = "#9db4c4"
_COLOURS = ("#2477b3", "#c2571a", "#2f8f4e", "#8e4ba8", "#b3922a")
"""of held-out domains; more than five share them"""


def curve_table(curves: Mapping[str, Curve]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text: each stage's scores on held-out problems by step."""
    rows = [
        [stage, domain, ", ".join(_shown(points)), _last(points)]
        for stage, curve in curves.items()
        for domain, points in curve.held_out.items()
    ]
    return ["stage", "domain", "held-out outcome after step", "last"], rows


def _shown(points: Sequence[ScorePoint]) -> list[str]:
    """Example: ["0: 0.250", "5: 0.375"]; of many points the first, the last and some between."""
    every = max(1, -(-(len(points) - 1) // (_MOST_SHOWN - 1)))
    chosen = [*points[:-1:every], points[-1]]
    return [f"{p.step}: {'none' if p.outcome is None else f'{p.outcome:.3f}'}" for p in chosen]


def _last(points: Sequence[ScorePoint]) -> str:
    """Example: `0.375 ± 0.060 of 64 problems`, with the standard error."""
    last = points[-1]
    if last.outcome is None:
        return f"none of {last.wanted} problems was finished"
    of = f"{last.problems}" if last.problems == last.wanted else f"{last.problems} of {last.wanted}"
    return f"{last.outcome:.3f} ± {last.stderr:.3f} on {of} problems"


def curve_chart(curve: Curve) -> str:
    """An SVG with a legend above it: outcomes from 0 up, by step."""
    lines = [("training samples", _TRAINING, curve.training)]
    for place, domain in enumerate(curve.held_out):
        colour = _COLOURS[place % len(_COLOURS)]
        lines.append((f"held out: {domain}", colour, curve.outcomes(domain)))
    lines = [line for line in lines if line[2]]
    if not lines:
        return "<p>none</p>"
    axes = _Axes(
        last_step=max(max(values) for _, _, values in lines),
        highest=max(max(values.values()) for _, _, values in lines),
    )
    legend = " &nbsp; ".join(
        f'<span style="color:{colour}">■</span> {html.escape(name)}' for name, colour, _ in lines
    )
    marks = [axes.drawn(), *(axes.line(colour, values) for _, colour, values in lines)]
    for place, points in enumerate(curve.held_out.values()):
        marks += [axes.error_bar(_COLOURS[place % len(_COLOURS)], point) for point in points]
    size = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}"'
    return f"<p>{legend}</p><svg {size} width=100% role=img>{''.join(marks)}</svg>"


class _Axes:
    """From steps and outcomes to places of the picture."""

    def __init__(self, last_step: int, highest: float) -> None:
        self._last = max(1, last_step)
        self._top = next((top for top in _TOPS if highest <= top), _TOPS[-1])

    def drawn(self) -> str:
        """Lines and numbers of both axes."""
        parts: list[str] = []
        for share in (0.0, 0.5, 1.0):
            y, value = self._y(share * self._top), share * self._top
            parts.append(
                f'<path d="M{_LEFT:g} {y:.1f}H{_WIDTH - _RIGHT:g}" stroke="#dde4ea"/>'
                f'<text x="{_LEFT - 6:g}" y="{y + 4:.1f}" font-size="12" text-anchor="end">'
                f"{value:.3g}</text>"
            )
        for step in sorted({round(self._last * quarter / 4) for quarter in range(5)}):
            anchor = "end" if step == self._last else "middle"
            parts.append(
                f'<text x="{self._x(step):.1f}" y="{_HEIGHT - 6:g}" font-size="12"'
                f' text-anchor="{anchor}">{"step " if step == self._last else ""}{step}</text>'
            )
        return "".join(parts)

    def line(self, colour: str, values: Mapping[int, float]) -> str:
        """Through the values by step, with a dot at each of a few."""
        places = [(self._x(step), self._y(values[step])) for step in sorted(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if len(places) <= _WIDTH / 12:
            drawn += "".join(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places
            )
        return drawn

    def error_bar(self, colour: str, point: ScorePoint) -> str:
        """One standard error to either side."""
        if point.outcome is None:
            return ""
        low, high = point.outcome - point.stderr, point.outcome + point.stderr
        above, below = self._y(min(high, self._top)), self._y(max(low, 0.0))
        x = self._x(point.step)
        told = f"step {point.step}: {point.outcome:.3f} ± {point.stderr:.3f}"
        path = f"M{x:.1f} {above:.1f}V{below:.1f}"
        return f'<path d="{path}" stroke="{colour}"><title>{told}</title></path>'

    def _x(self, step: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self._last

    def _y(self, outcome: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * outcome / self._top
