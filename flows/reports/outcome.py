"""What a run's page says first: which model is best, and what training gave each expert. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.plan import BASE
from flows.reports.paired_tests import Paired, paired
from flows.reports.problem_outcomes import ProblemOutcomes, problem_outcomes
from flows.reports.report import Report, Scores, domains_of, first_version, mean
from flows.reports.score_cells import ScoreCell, ScoreTable

_NOTHINK = "-nothink"


@dataclass(frozen=True, slots=True)
class Best:
    """The model with the highest score in a domain, and the next best expert there."""

    domain: str
    model: str
    cell: ScoreCell
    second: str = ""
    lead: Paired | None = None
    """over the second, on the same problems"""


@dataclass(frozen=True, slots=True)
class ExpertGain:
    """An expert's last version against its first, on the same problems of its own domain."""

    model: str
    since: str
    domain: str
    before: ScoreCell
    after: ScoreCell
    change: Paired


@dataclass(frozen=True, slots=True)
class Outcome:
    """Empty while a run has no scores."""

    headline: str = ""
    detail: str = ""
    winner: str = ""
    """the best model; empty where several are equal"""
    best: Sequence[Best] = ()
    """by domain"""
    gains: Sequence[ExpertGain] = ()


def outcome_of(report: Report, table: ScoreTable | None, scores: Mapping[str, Any]) -> Outcome:
    """`table` is the one at temperature 1, `scores` the content of `scores.json`."""
    if table is None:
        return Outcome()
    outcomes = problem_outcomes(scores)
    finals = _finals(report)
    headline, detail, winner = _headline(report.scores, finals)
    best = [_best(domain, table, finals, outcomes) for domain in table.domains]
    gains = [g for name in report.gains if (g := _gain(name, report, table, outcomes)) is not None]
    return Outcome(headline, detail, winner, [b for b in best if b is not None], gains)


def _finals(report: Report) -> list[str]:
    """The last version of each model; all that is scored, where nothing was trained."""
    last = [names[-1] for names in report.versions.values() if names]
    known = [name for name in last if name in report.scores]
    return known or [m for m in report.scores if m != BASE and not m.endswith(_NOTHINK)]


def _headline(scores: Scores, finals: Sequence[str]) -> tuple[str, str, str]:
    """-> headline, what follows it, the best model."""
    domains = domains_of(scores)
    whole = {m: mean(scores[m]) for m in finals if len(scores[m]) == len(domains)}
    if not whole:
        return "", "", ""
    first, *others = sorted(whole, key=lambda m: -whole[m])
    where = f"on {domains[0]}" if len(domains) == 1 else f"as the mean of {len(domains)} domains"
    equal = [m for m in others if whole[m] == whole[first]]
    if equal:
        names = " and ".join([", ".join([first, *equal[:-1]]), equal[-1]])
        return f"{names} are equal: {whole[first]:.3f} {where}.", "No model is best.", ""
    said = f"{first} is best: {whole[first]:.3f} {where}."
    if not others:
        return said, "", first
    points = 100 * (whole[first] - whole[others[0]])
    follows = f"{others[0]} follows with {whole[others[0]]:.3f}, {points:.1f} points behind."
    return said, follows, first


def _best(
    domain: str,
    table: ScoreTable,
    finals: Sequence[str],
    outcomes: ProblemOutcomes,
) -> Best | None:
    there = {m: table.rows[m][domain] for m in finals if domain in table.rows.get(m, {})}
    if not there:
        return None
    ranked = sorted(there, key=lambda m: -there[m].value)
    first = ranked[0]
    if len(ranked) < 2 or there[first].value == there[ranked[1]].value == 0:
        return Best(domain, first if there[first].value else "none", there[first])
    ours, theirs = outcomes.get((first, domain), ()), outcomes.get((ranked[1], domain), ())
    lead = paired(theirs, ours) if len(ours) == len(theirs) > 1 else None
    return Best(domain, first, there[first], ranked[1], lead)


def _gain(
    expert: str,
    report: Report,
    table: ScoreTable,
    outcomes: ProblemOutcomes,
) -> ExpertGain | None:
    domain, since = report.gains[expert].domain, first_version(report.versions.get(expert, []))
    before, after = outcomes.get((since, domain)), outcomes.get((expert, domain))
    if before is None or after is None or len(before) != len(after):
        return None
    cells = (table.rows.get(since, {}).get(domain), table.rows.get(expert, {}).get(domain))
    if cells[0] is None or cells[1] is None:
        return None
    return ExpertGain(expert, since, domain, cells[0], cells[1], paired(before, after))
