"""How often each model's rollouts showed a pathology before it was trained, and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.plan import first_version
from flows.reports.paired_tests import paired
from flows.reports.rendering import p_text
from infra.config import Found
from tasks.evaluate.score_statistics import interval, judged_in_both, mean


class PathologyRate(Found):
    """The share of rollouts that show it, 0 to 1, as the mean over problems."""

    rate: float
    low: float
    high: float
    """95% interval, over problems"""


class PathologyChange(Found):
    """On the same held-out problems, sampled at temperature 1."""

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


Shares = Sequence[float | None]


def pathology_changes(
    scores: Mapping[str, Any], versions: Mapping[str, Sequence[str]]
) -> Iterator[PathologyChange]:
    """Each model's last version against its first in its own domains, which are those with greedy
    answers, from the content of `scores.json`. A pathology that neither showed is left out."""
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
