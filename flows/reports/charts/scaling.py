"""Test-time scaling as the page's charts get it: by domain, against samples and against turns."""

from __future__ import annotations

from flows.reports.learning_curves import Chart
from tasks.evaluate.scaling import Lines, Scaling, ScalingPoint


def scaling_charts(scaling: Scaling) -> dict[str, list[Chart]]:
    """Domains without a curve are left out."""
    both = (scaling.samples, scaling.turns)
    domains = dict.fromkeys(domain for lines in both for of in lines.values() for domain in of)
    return {domain: _charts(scaling, domain) for domain in domains}


def _charts(scaling: Scaling, domain: str) -> list[Chart]:
    charts = [
        _chart("best of n samples, chosen by the verifier", "samples", scaling.samples, domain),
        _chart("score with at most n turns", "turns", scaling.turns, domain),
    ]
    return [chart for chart in charts if chart["lines"]]


def _chart(title: str, unit: str, lines: Lines, domain: str) -> Chart:
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
