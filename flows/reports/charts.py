"""Draws curves: what a policy scored while it trained, for the terminal and the page, each stage's
figures, and scaling at test time.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from flows.reports.stage_view import StageView
from tasks.evaluate.scaling import Lines, Scaling, ScalingPoint
from tasks.rl.curve import Curve, ScorePoint
from tasks.series import Points

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


_TITLES = {
    "loss": "loss",
    "reward_mean": "reward",
    "entropy": "entropy, nats a token",
    "teacher_kl": "KL from the teacher, nats a token",
    "kl_k3": "KL from the old policy (k3)",
    "grad_norm": "gradient norm",
    "clip_fraction": "clipped tokens, share",
    "mismatch_mean": "trainer - engine logprob, mean |d|",
    "response_tokens_mean": "tokens an answer",
    "truncated_share": "truncated rollouts, share",
    "zero_variance_share": "groups of equal rewards, share",
    "lr": "learning rate",
}
"""in the order of the charts; `outcome_mean` is in the chart of outcomes"""
_SHARES = ("clip_fraction", "truncated_share", "zero_variance_share")

Chart = dict[str, Any]
"""{"title": ..., "lines": [{"name": ..., "points": [[step, value, error], ...]}]}; error is the
half width of a 95% interval, or missing"""
_Z95 = 1.96


def charts_of(views: Sequence[StageView], curves: Mapping[str, Curve]) -> dict[str, list[Chart]]:
    """By stage, in the plan's order; stages without a curve are left out."""
    made = {view.name: _charts(view, curves.get(view.name)) for view in views}
    return {name: charts for name, charts in made.items() if charts}


def _charts(view: StageView, curve: Curve | None) -> list[Chart]:
    charts: list[Chart] = []
    if curve is not None and (curve.training or curve.held_out):
        charts.append(_outcomes(curve))
    for name, title in _TITLES.items():
        points = [p for p in view.series.get(name, ()) if math.isfinite(p[1])]
        if points:
            charts.append(_chart(title, points, top=1.0 if name in _SHARES else None))
    return charts


def _outcomes(curve: Curve) -> Chart:
    lines: list[dict[str, Any]] = []
    if curve.training:
        points = [[step, round(value, 4)] for step, value in sorted(curve.training.items())]
        lines.append({"name": "training samples", "points": points})
    for domain, scored in curve.held_out.items():
        points = [
            [p.step, round(p.outcome, 4), round(_Z95 * p.stderr, 4)]
            for p in scored
            if p.outcome is not None
        ]
        lines.append({"name": f"held out: {domain}", "points": points})
    return {"title": "mean outcome", "lines": lines, "top": 1.0, "large": True}


def _chart(title: str, points: Points, top: float | None) -> Chart:
    shown = [[step, float(f"{value:.4g}")] for step, value in points]
    return {"title": title, "lines": [{"name": title, "points": shown}], "top": top}


def scaling_charts(scaling: Scaling) -> dict[str, list[Chart]]:
    """Domains without a curve are left out."""
    both = (scaling.samples, scaling.turns)
    domains = dict.fromkeys(domain for lines in both for of in lines.values() for domain in of)
    return {domain: _scaling_charts(scaling, domain) for domain in domains}


def _scaling_charts(scaling: Scaling, domain: str) -> list[Chart]:
    charts = [
        _line_chart(
            "best of n samples, chosen by the verifier", "samples", scaling.samples, domain
        ),
        _line_chart("score with at most n turns", "turns", scaling.turns, domain),
    ]
    return [chart for chart in charts if chart["lines"]]


def _line_chart(title: str, unit: str, lines: Lines, domain: str) -> Chart:
    drawn: list[Chart] = []
    for model, domains in lines.items():
        points = domains.get(domain, [])
        if not points:
            continue
        drawn.append({"name": model, "points": [_bar(p) for p in points]})
        if any(p.solved != p.score for p in points):  # outcomes between 0 and 1
            solved = [[p.budget, round(p.solved, 4)] for p in points]
            drawn.append({"name": f"{model}, solved", "points": solved})
    return {
        "title": title, "lines": drawn, "top": 1.0, "wide": True, "unit": unit, "doubles": True
    }  # fmt: skip


def _bar(point: ScalingPoint) -> list[float]:
    """[budget, score, down to the interval's lower end, up to its upper end]"""
    score = round(point.score, 4)
    return [
        point.budget, score, round(score - point.low, 4), round(point.high - score, 4)
    ]  # fmt: skip
