"""Gives the page its curves, by step and at test time; tabulates what a policy scored, and how
often each model's rollouts showed a pathology before it was trained, and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engines.rollout.metrics import NOTHINK, THINKING
from engines.types import DISAGREEMENT
from flows.plan import first_version
from flows.reports.paired_tests import paired
from flows.reports.rendering import p_text
from flows.reports.stage_view import StageView
from infra.config import Found
from tasks.evaluate.score_statistics import (
    Lines,
    Scaling,
    ScalingPoint,
    interval,
    judged_in_both,
    mean,
)
from tasks.rl.curve import Curve, ScorePoint
from tasks.training_record import Points

_MOST_SHOWN = 8
"""scores of a line of the table"""
_TITLES = {
    "loss": "loss",
    "reward_mean": "reward",
    "entropy": "entropy, nats a token",
    "temperature": "sampling temperature",
    "teacher_kl": "KL from the teacher, nats a token",
    "kl_k3": "KL from the old policy (k3)",
    "kl_from_start": "KL from the stage's start, nats an answer",
    "grad_norm": "gradient norm",
    "clip_fraction": "clipped tokens, share",
    "mismatch_mean": "trainer - engine logprob, mean |d|",
    "response_tokens_mean": "tokens an answer",
    "truncated_share": "truncated rollouts, share",
    "zero_variance_share": "groups of equal rewards, share",
    "lr": "learning rate",
}
"""in the order of the charts; `outcome_mean` is in the chart of outcomes"""
_OF_DOMAIN = "outcome_mean_"
_OUTCOME = "mean outcome"
"""title of the chart that answers whether training helped; it stands first"""
_SHARES = ("clip_fraction", "truncated_share", "zero_variance_share")
Chart = dict[str, Any]
"""{"title": ..., "lines": [{"name": ..., "points": [[step, value, error], ...]}]}; error is the
half width of a 95% interval, or missing"""
_Z95 = 1.96
Shares = Sequence[float | None]


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


def charts_of(
    views: Sequence[StageView], curves: Mapping[str, Curve | None]
) -> dict[str, list[Chart]]:
    """Return the charts by stage, in the plan's order, those with outcomes first; stages without a
    curve are left out."""
    made = {view.name: _charts(view, curves.get(view.name)) for view in views}
    drawn = [(name, charts) for name, charts in made.items() if charts]
    return dict(sorted(drawn, key=lambda each: each[1][0]["title"] != _OUTCOME))


def _charts(view: StageView, curve: Curve | None) -> list[Chart]:
    charts: list[Chart] = []
    if curve is not None and (curve.training or curve.held_out):
        charts.append(_outcomes(curve, _by_mode(view.series)))
        charts += _overoptimisation(curve)
    for name, title in _TITLES.items():
        points = [p for p in view.series.get(name, ()) if math.isfinite(p[1])]
        if points:
            charts.append(_chart(title, points, top=1.0 if name in _SHARES else None))
    for name, points in view.series.items():
        if name.startswith(f"{DISAGREEMENT}_"):
            reward = name.removeprefix(f"{DISAGREEMENT}_")
            charts.append(_chart(f"disagreement on {reward}, standard deviation", points, top=None))
    return charts


def _by_mode(series: Mapping[str, Points]) -> dict[str, Points]:
    """Training outcomes of domains that are trained with thinking and without, by their names."""
    return {
        name.removeprefix(_OF_DOMAIN): points
        for name, points in series.items()
        if name.startswith(_OF_DOMAIN) and name.endswith((THINKING, NOTHINK))
    }


def _outcomes(curve: Curve, by_mode: Mapping[str, Points]) -> Chart:
    lines: list[dict[str, Any]] = []
    if curve.training:
        points = [[step, round(value, 4)] for step, value in sorted(curve.training.items())]
        lines.append({"name": "training samples", "points": points})
    for name, points in by_mode.items():
        shown = [[step, round(value, 4)] for step, value in points]
        lines.append({"name": f"training samples: {name}", "points": shown})
    for domain, scored in curve.held_out.items():
        points = [
            [p.step, round(p.outcome, 4), round(_Z95 * p.stderr, 4)]
            for p in scored
            if p.outcome is not None
        ]
        lines.append({"name": f"held out: {domain}", "points": points})
    return {"title": _OUTCOME, "lines": lines, "top": 1.0, "large": True}


def _overoptimisation(curve: Curve) -> list[Chart]:
    """Return what reward models did to the true score: it, and what they give, by the distance from
    the stage's start, whose root Gao et al. draw (arXiv 2210.10760); of RL, and of the best of n.
    """
    true, given = list[Chart](), list[Chart]()
    for domain, points in curve.held_out.items():
        of_rl = [
            (kl, p.outcome, p.stderr, p.proxy)
            for p in points
            if p.outcome is not None and (kl := curve.kl_after(p.step)) is not None
        ]
        chosen = [(b.kl, b.outcome, b.stderr, b.proxy) for p in points for b in p.best_of_n]
        for name, found in ((f"RL: {domain}", of_rl), (f"best of n: {domain}", chosen)):
            known = [
                (round(math.sqrt(max(kl, 0.0)), 3), outcome, stderr, proxy)
                for kl, outcome, stderr, proxy in found
                if proxy is not None
            ]
            if known:
                bars = [[x, round(y, 4), round(_Z95 * e, 4)] for x, y, e, _ in known]
                true.append({"name": name, "points": bars})
                shown = [[x, float(f"{proxy:.4g}")] for x, *_, proxy in known]
                given.append({"name": name, "points": shown})
    titles = {"outcome": (true, 1.0), "what the reward model gives": (given, None)}
    return [
        {
            "title": f"{what}, by distance from the start", "lines": lines, "top": top,
            "wide": True, "unit": "root of the KL in nats",
        }
        for what, (lines, top) in titles.items()
        if lines
    ]  # fmt: skip


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


class PathologyRate(Found):
    """The share of rollouts that show it, 0 to 1, as the mean over problems."""

    rate: float
    low: float
    high: float
    """95% interval, over problems"""


class PathologyChange(Found):
    """How often a pathology showed before and after, on the same held-out problems, sampled at
    temperature 1."""

    model: str
    since: str
    """the version before: the model's first, or the base of an only one"""
    domain: str
    pathology: str
    before: PathologyRate
    after: PathologyRate
    problems: int
    p: float
    """two-sided, of the same test as scores"""


def pathology_changes(
    scores: Mapping[str, Any], versions: Mapping[str, Sequence[str]]
) -> Iterator[PathologyChange]:
    """Compare each model's last version against its first in its own domains, which are those with
    greedy answers, from the content of `scores.json`. A pathology that neither showed is left out.
    """
    every = {(c["kind"], c["model"], c["domain"]): c for c in scores.get("cells", [])}
    for kind, model, domain in every:
        if kind != "greedy" or model not in versions:
            continue
        before = every.get(("score", first_version(versions[model]), domain))
        after = every.get(("score", model, domain))
        if before is None or after is None:
            continue
        first, second = before.get("pathologies", {}), after.get("pathologies", {})
        for name in dict.fromkeys([*first, *second]):
            shares = (_shares(before, first.get(name)), _shares(after, second.get(name)))
            if len(shares[0]) != len(shares[1]):
                continue
            ours, theirs = judged_in_both(*shares)
            if ours:
                yield PathologyChange(
                    model=model,
                    since=before["model"],
                    domain=domain,
                    pathology=name,
                    before=_rate(ours),
                    after=_rate(theirs),
                    problems=len(ours),
                    p=paired(ours, theirs).p,
                )


def _shares(cell: Mapping[str, Any], shown: Shares | None) -> Shares:
    """By problem. A pathology that no rollout of a cell shows is not written there."""
    if shown is not None:
        return shown
    return [None if all(v is None for v in of) else 0.0 for of in cell["outcomes"]]


def _rate(shares: Sequence[float]) -> PathologyRate:
    low, high = interval(shares)
    return PathologyRate(rate=mean(shares), low=low, high=high)


def pathology_table(changes: Sequence[PathologyChange]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text."""
    rows = [
        [c.model, c.domain, c.pathology, c.since, _text(c.before), _text(c.after), p_text(c.p)]
        for c in changes
    ]
    return ["model", "domain", "pathology", "since", "before", "after", "test"], rows


def _text(shown: PathologyRate) -> str:
    """Example: `3.1% (1.2% to 7.8%)`"""
    return f"{shown.rate:.1%} ({shown.low:.1%} to {shown.high:.1%})"
