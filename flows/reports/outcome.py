"""What a run says first, on its page and in MLflow: which model is best, and what training gave
each expert. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.plan import BASE
from flows.reports.paired_tests import SURE, Paired, holm, paired_over_domains
from flows.reports.problem_outcomes import ProblemOutcomes, problem_outcomes
from flows.reports.rendering import p_text
from flows.reports.report import Gain, Report, Scores, domains_of, mean
from flows.reports.score_cells import ScoreCell, ScoreTable, score_tables
from tasks.evaluate.spec import NOTHINK
from tasks.evaluate.statistics import judged_in_both


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
        """Example: `agent: **agent** 0.750, p = 0.031 over agent-2`"""
        if not self.model:
            return f"{self.domain}: no model scored above 0"
        score = f"{self.domain}: **{self.model}** {self.cell.value:.3f}"
        if self.lead is None:
            return score
        return f"{score}, {p_text(self.lead.p)} over {self.second}"


@dataclass(frozen=True, slots=True)
class ExpertGain:
    """An expert's last version against its first, on the same problems of its own domain."""

    model: str
    before: ScoreCell
    after: ScoreCell
    change: Gain


@dataclass(frozen=True, slots=True)
class Outcome:
    """Empty while a run has no scores."""

    headline: str = ""
    detail: str = ""
    winner: str = ""
    """the best model; empty where its lead may be chance"""
    best: Sequence[Best] = ()
    """by domain"""
    gains: Sequence[ExpertGain] = ()


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
        ExpertGain(name, before, after, gain)
        for name, gain in report.gains.items()
        if (before := table.rows.get(gain.since, {}).get(gain.domain)) is not None
        and (after := table.rows.get(name, {}).get(gain.domain)) is not None
    ]
    return Outcome(headline, detail, winner, [b for b in best if b is not None], gains)


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
    """How much `first` is better, on what both have a verdict; None unless both answered the same
    problems of all domains."""
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
    """Whether it leads each of the others by more than chance, all tests counted (Holm)."""
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
