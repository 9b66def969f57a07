"""The curves of each stage that trained, as the page's charts get them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flows.reports.stage_view import StageView
from tasks.rl.curve import Curve
from tasks.series import Points

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
