"""Says first what a run showed: scores with their intervals, which model is best, what training
gave, and what stages found wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from engines.rollout.metrics import NOTHINK
from flows.plan import BASE
from flows.post_train import UNIFIED
from flows.reports.paired_tests import (
    SURE,
    Paired,
    ProblemOutcomes,
    holm,
    paired_over_domains,
    problem_outcomes,
)
from flows.reports.rendering import p_text
from flows.reports.report import MEAN, Gain, Intervals, Report, Scores, domains_of, mean
from tasks.evaluate.score_statistics import SettingScores, judged_in_both, verdicts
from tasks.evaluate.score_statistics import mean as mean_of

_METHODS = {
    "rl": "RL",
    "sft": "SFT",
    "opd": "on-policy distillation",
    "preference": "preferences",
    "mid_training": "mid-training",
}
"""how a headline names kinds of stages"""
Cells = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""of `scores.json`, by model, domain and kind"""


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
    """Make the tables at temperature 1, greedy, and best of each k, then of each further setting;
    `scores` is the content of `scores.json`."""
    cells = {(c["model"], c["domain"], c["kind"]): c for c in scores.get("cells", [])}
    tables = [
        _score_table("sampled at temperature 1", "score", report.scores,
                     report.intervals.get("scores", {}), cells, report.no_verdict),
        _score_table("greedy", "greedy", report.greedy, report.intervals.get("greedy", {}), cells),
        *_best_tables("", "score", report, cells),
    ]  # fmt: skip
    for name, of in report.sampled.items():
        intervals = of.intervals.get("scores", {})
        tables.append(
            _score_table(f"sampled {name}", name, of.scores, intervals, cells, of.no_verdict)
        )
        tables += _best_tables(f", {name}", name, of, cells)
    return [table for table in tables if table.domains]


def _best_tables(
    suffix: str, kind: str, of: Report | SettingScores, cells: Cells
) -> list[ScoreTable]:
    return [
        _score_table(f"pass@{k}{suffix}", kind, table, of.intervals.get(f"best_of_{k}", {}), cells)
        for k, table in of.best_of.items()
    ]


def _score_table(
    title: str,
    kind: str,
    table: Scores,
    intervals: Intervals,
    cells: Cells,
    lacking: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> ScoreTable:
    domains = list(dict.fromkeys([*domains_of(table), *(d for of in lacking.values() for d in of)]))
    rows = {
        model: _row(model, row, kind, domains, intervals.get(model, {}), cells)
        for model in dict.fromkeys([*table, *lacking])
        if (row := table.get(model, {})) or model in lacking
    }
    return ScoreTable(title, domains, rows, lacking)


def task_tables(content: Mapping[str, Any]) -> list[ScoreTable]:
    """Make the tables of the content of `task_scores.json`; none where there is none."""
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
    cells: Cells,
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
    centre = mean_of([c.value for c in cells])
    below, above = 0.0, 0.0
    for cell in cells:
        if cell.low is None or cell.high is None:
            return ScoreCell(centre)
        below += (cell.value - cell.low) ** 2
        above += (cell.high - cell.value) ** 2
    low, high = math.sqrt(below) / len(cells), math.sqrt(above) / len(cells)
    return ScoreCell(centre, max(0.0, centre - low), min(1.0, centre + high))


@dataclass(frozen=True, slots=True)
class Best:
    """The model with the highest score in a domain, against the next one there."""

    domain: str
    model: str
    """empty where no model scored above 0"""
    cell: ScoreCell
    second: str = ""
    lead: Paired | None = None
    """over the second, on the same problems"""
    is_sure: bool = False
    """whether its lead over each other model is more than chance"""

    @property
    def said(self) -> str:
        """Example: `agent: agent 0.750, p = 0.031 over agent-2`"""
        if not self.model:
            return f"{self.domain}: no model scored above 0"
        score = f"{self.domain}: {self.model} {self.cell.value:.3f}"
        if self.lead is None:
            return score
        return f"{score}, {p_text(self.lead.p)} over {self.second}"


@dataclass(frozen=True, slots=True)
class ModelGain:
    """A model's last version against its first, on the same problems."""

    model: str
    before: ScoreCell
    after: ScoreCell
    change: Gain


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run showed; empty while a run has no scores."""

    headline: str = ""
    """what training did to each model, by a test; else which model is best"""
    detail: str = ""
    winner: str = ""
    """the best model; empty where its lead may be chance"""
    best: Sequence[Best] = ()
    """by domain"""
    gains: Sequence[ModelGain] = ()


def outcome_of(report: Report, scores: Mapping[str, Any]) -> Outcome:
    """`scores` is the content of `scores.json`."""
    tables = score_tables(report, scores)
    if not report.scores or not tables:
        return Outcome()
    table, outcomes = tables[0], problem_outcomes(scores)
    finals = _finals(report)
    headline, detail, winner = _headline(report.scores, finals, outcomes)
    best = [_best(domain, table, finals, outcomes) for domain in table.domains]
    gains = [
        ModelGain(name, before, after, gain)
        for name, gain in report.gains.items()
        if (before := table.rows.get(gain.since, {}).get(gain.domain)) is not None
        and (after := table.rows.get(name, {}).get(gain.domain)) is not None
    ]
    if helped := what_training_did(report):
        headline, detail = helped, " ".join(filter(None, [headline, detail]))
    return Outcome(headline, detail, winner, [b for b in best if b is not None], gains)


def what_training_did(report: Report) -> str:
    """Example: `RL helped agent: +23.0 points, p < 0.001; unified keeps 92% of the experts'
    scores.`; empty where nothing was trained, or scored before and after."""
    experts = {name: gain for name, gain in report.gains.items() if name != UNIFIED}
    gains = experts or report.gains
    adjusted = holm([gain.p for gain in gains.values()])
    told: dict[str, list[str]] = {}
    for (name, gain), p in zip(gains.items(), adjusted, strict=True):
        told.setdefault(_verdict(gain, p), []).append(f"{name}: {_change(gain)}")
    clauses = [f"{verdict} {_listed(changes)}" for verdict, changes in told.items()]
    if clauses and (kept := _share_kept(report, experts)) is not None:
        clauses.append(f"{UNIFIED} keeps {kept:.0%} of the experts' scores")
    said = "; ".join(clauses)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _verdict(gain: Gain, adjusted: float) -> str:
    """`adjusted`: its p, all tests of the headline counted."""
    methods = " and ".join(_METHODS.get(kind, kind) for kind in gain.by) or "training"
    if adjusted >= SURE:
        return f"it is not sure that {methods} changed"
    return f"{methods} {'helped' if gain.mean > 0 else 'hurt'}"


def _change(gain: Gain) -> str:
    """Example: `+23.0 points, p < 0.001`"""
    return f"{100 * gain.mean:+.1f} points, {p_text(gain.p)}"


def _listed(changes: Sequence[str]) -> str:
    """One as it is, of several each in brackets: `a (+23.0 points, p < 0.001) and b (...)`"""
    if len(changes) == 1:
        return changes[0]
    shown = [f"{name} ({change})" for name, _, change in (c.partition(": ") for c in changes)]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _share_kept(report: Report, experts: Mapping[str, Gain]) -> float | None:
    """The unified model's scores in the domains of the experts that it learned from, divided by
    theirs; None: one is missing, or all of theirs are 0."""
    row = report.scores.get(UNIFIED, {})
    taught = {name: gain.domain for name, gain in experts.items() if gain.teaches}
    if not all(domain in row for domain in taught.values()):
        return None
    theirs = sum(report.scores[name][domain] for name, domain in taught.items())
    return sum(row[domain] for domain in taught.values()) / theirs if theirs else None


def _finals(report: Report) -> list[str]:
    """The last version of each model; all that is scored, where nothing was trained."""
    last = [names[-1] for names in report.versions.values() if names]
    known = [name for name in last if name in report.scores]
    return known or [m for m in report.scores if m != BASE and not m.endswith(NOTHINK)]


def _headline(
    scores: Scores, finals: Sequence[str], outcomes: ProblemOutcomes
) -> tuple[str, str, str]:
    """-> headline, what follows it, the best model."""
    domains = domains_of(scores)
    whole = {m: mean(scores[m]) for m in finals if len(scores[m]) == len(domains)}
    if not whole:
        return "", "", ""
    first, *others = sorted(whole, key=lambda m: -whole[m])
    where = f"on {domains[0]}" if len(domains) == 1 else f"as the mean of {len(domains)} domains"
    if whole[first] == 0:
        return f"No model scored above 0 {where}.", "", ""
    if not others:
        said = f"{first} reaches {whole[first]:.3f} {where}."
        since = _lead(BASE, first, domains, outcomes) if first != BASE else None
        return said, "" if since is None else f"{_difference(since)} from {BASE}.", ""
    equal = [m for m in others if whole[m] == whole[first]]
    if equal:
        names = " and ".join([", ".join([first, *equal[:-1]]), equal[-1]])
        return f"{names} are equal: {whole[first]:.3f} {where}.", "No model is best.", ""
    second = others[0]
    lead = _lead(second, first, domains, outcomes)
    follows = f"{second} follows with {whole[second]:.3f}"
    if lead is None:
        said = f"{first} has the highest score: {whole[first]:.3f} {where}."
        return said, f"{follows}; they did not answer the same problems, so no test says more.", ""
    follows = f"{follows}: {_difference(lead)} between them"
    if _is_sure(first, others, domains, outcomes):
        return f"{first} is best: {whole[first]:.3f} {where}.", f"{follows}.", first
    said = f"{first} has the highest score: {whole[first]:.3f} {where}."
    return said, f"{follows}, which may be chance: no model is surely best.", ""


def _difference(found: Paired) -> str:
    """Example: `+25.0 points (95% +1.0 to +43.2, p = 0.031)`"""
    points, low, high = (100 * value for value in (found.difference, found.low, found.high))
    return f"{points:+.1f} points (95% {low:+.1f} to {high:+.1f}, {p_text(found.p)})"


def _lead(
    second: str, first: str, domains: Sequence[str], outcomes: ProblemOutcomes
) -> Paired | None:
    """Return how much `first` is better, on what both have a verdict; None unless both answered the
    same problems of all domains."""
    theirs = [outcomes.get((second, domain), []) for domain in domains]
    ours = [outcomes.get((first, domain), []) for domain in domains]
    if list(map(len, ours)) != list(map(len, theirs)):
        return None
    known = [judged_in_both(a, b) for a, b in zip(theirs, ours, strict=True)]
    if not all(row for row, _ in known):
        return None
    return paired_over_domains([a for a, _ in known], [b for _, b in known])


def _is_sure(
    first: str, others: Sequence[str], domains: Sequence[str], outcomes: ProblemOutcomes
) -> bool:
    """Return whether it leads each of the others by more than chance, all tests counted (Holm)."""
    leads = [_lead(other, first, domains, outcomes) for other in others]
    known = [lead for lead in leads if lead is not None]
    return len(known) == len(leads) and all(p < SURE for p in holm([lead.p for lead in known]))


def _best(
    domain: str,
    table: ScoreTable,
    finals: Sequence[str],
    outcomes: ProblemOutcomes,
) -> Best | None:
    there = {m: table.rows[m][domain] for m in finals if domain in table.rows.get(m, {})}
    if not there:
        return None
    first, *others = sorted(there, key=lambda m: -there[m].value)
    if there[first].value == 0:
        return Best(domain, "", there[first])
    if not others:
        return Best(domain, first, there[first])
    lead = _lead(others[0], first, [domain], outcomes)
    is_sure = _is_sure(first, others, [domain], outcomes)
    return Best(domain, first, there[first], others[0], lead, is_sure)


def warning_lines(report: Report) -> list[str]:
    """Example: ["agent-rl: 2 of 3 steps made no update: all groups had equal rewards. Draw ..."]"""
    return [f"{stage}: {said}" for stage, of in report.warnings.items() for said in of]


def state_line(report: Report) -> str:
    """Example: `smoke-2026: completed with 2 warnings in 46 s`"""
    count = len(warning_lines(report))
    warned = f" with {count} warning{'s' if count > 1 else ''}" if count else ""
    return f"{report.run}: {report.state}{warned} in {report.seconds:.0f} s"
