"""Scores as the page's tables and sentences have them: each with its interval and its n. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.reports.report import Report, Scores, domains_of
from tasks.evaluate.statistics import mean, verdicts

MEAN = "mean"


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """One model on one domain, or its mean over all of them. Values are 0 to 1."""

    value: float
    low: float | None = None
    high: float | None = None
    """95% interval"""
    problems: int = 0
    samples: int = 0
    """of each problem"""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Example: title "best of 4 (pass@4)", domains ["agent"], rows {"base": {"agent": cell}}"""

    title: str
    domains: list[str]
    rows: dict[str, dict[str, ScoreCell]]
    """model -> domain, or `mean`, -> cell"""
    no_verdict: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """model -> domain -> why it has no score there: every verdict failed"""

    @property
    def columns(self) -> list[str]:
        has_mean = any(MEAN in row for row in self.rows.values())
        return [*self.domains, *([MEAN] if has_mean else [])]


def score_tables(report: Report, scores: Mapping[str, Any]) -> list[ScoreTable]:
    """At temperature 1, greedy, and best of each k; `scores` is the content of `scores.json`."""
    kinds: list[tuple[str, str, Scores]] = [
        ("sampled at temperature 1", "scores", report.scores),
        ("greedy", "greedy", report.greedy),
    ]
    kinds += [(f"pass@{k}", f"best_of_{k}", table) for k, table in report.best_of.items()]
    cells = {(c["model"], c["domain"], c["kind"]): c for c in scores.get("cells", [])}
    tables: list[ScoreTable] = []
    for title, name, table in kinds:
        lacking = report.no_verdict if name == "scores" else {}
        domains = list(
            dict.fromkeys([*domains_of(table), *(d for of in lacking.values() for d in of)])
        )
        if not domains:
            continue
        kind = "greedy" if name == "greedy" else "score"
        intervals = report.intervals.get(name, {})
        rows = {
            model: _row(model, row, kind, domains, intervals.get(model, {}), cells)
            for model in dict.fromkeys([*table, *lacking])
            if (row := table.get(model, {})) or model in lacking
        }
        tables.append(ScoreTable(title, domains, rows, lacking))
    return tables


def task_tables(content: Mapping[str, Any]) -> list[ScoreTable]:
    """Of the content of `task_scores.json`; none where there is none."""
    rows: dict[str, dict[str, ScoreCell]] = {}
    for cell in content.get("cells", []):
        shown = ScoreCell(cell["value"], cell["low"], cell["high"], cell["documents"], 1)
        rows.setdefault(cell["model"], {})[f"{cell['task']} {cell['metric']}"] = shown
    return [ScoreTable("lm-eval", list(next(iter(rows.values()))), rows)] if rows else []


def _row(
    model: str,
    row: Mapping[str, float],
    kind: str,
    domains: Sequence[str],
    intervals: Mapping[str, tuple[float, float]],
    cells: Mapping[tuple[str, str, str], Mapping[str, Any]],
) -> dict[str, ScoreCell]:
    made: dict[str, ScoreCell] = {}
    for domain, value in row.items():
        low, high = intervals.get(domain, (None, None))
        outcomes = cells.get((model, domain, kind), {}).get("outcomes", [])
        judged = [of for of in verdicts(outcomes) if of]
        samples = max(map(len, judged), default=0)
        made[domain] = ScoreCell(value, low, high, len(judged), samples)
    if len(row) == len(domains) > 1:
        # A mean over some of the domains would not compare with the others.
        made[MEAN] = _mean(list(made.values()))
    return made


def _mean(cells: Sequence[ScoreCell]) -> ScoreCell:
    """The domains are fixed; what varies is the problems of each. The interval is made of theirs
    (square-and-add: Zou and Donner 2008), so that a mean of 0 does not claim certainty.

    Example: 0.5 (0.3 to 0.7) and 0.1 (0 to 0.4) -> 0.3 (0.188 to 0.480)
    """
    centre = mean([c.value for c in cells])
    below, above = 0.0, 0.0
    for cell in cells:
        if cell.low is None or cell.high is None:
            return ScoreCell(centre)
        below += (cell.value - cell.low) ** 2
        above += (cell.high - cell.value) ** 2
    low, high = math.sqrt(below) / len(cells), math.sqrt(above) / len(cells)
    return ScoreCell(centre, max(0.0, centre - low), min(1.0, centre + high))
