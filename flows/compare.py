"""Runs of one recipe under several seeds: mean and spread of what each model scored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from flows.report import Report, Scores, domains_of
from infra.config import Config
from infra.errors import InputError


class Spread(Config):
    """One number of several runs."""

    mean: float
    deviation: float
    """sample standard deviation over the runs; 0 of a single run"""
    values: list[float]
    """one a run, in the order given"""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(mean=statistics.fmean(values), deviation=deviation, values=list(values))

    @property
    def standard_errors(self) -> float | None:
        """How many standard errors of the mean it lies from 0; infinite where all runs agree, None
        of a single run."""
        if len(self.values) == 1:
            return None
        error = self.deviation / math.sqrt(len(self.values))
        return self.mean / error if error else math.copysign(math.inf, self.mean)


class Comparison(Config):
    """What `tributary compare --json` prints; a model that some run lacks is left out."""

    runs: list[str]
    scores: dict[str, dict[str, Spread]]
    """model -> domain -> outcome at temperature 1"""
    greedy: dict[str, dict[str, Spread]]
    gains: dict[str, dict[str, Spread]]
    """expert -> domain -> its score less its cold start's, where both were scored"""
    seconds: dict[str, Spread]
    """stage -> wall time, of the runs that did not find it in the store"""


def compare(reports: Sequence[Report]) -> Comparison:
    """Raises InputError if a run has no scores yet."""
    for report in reports:
        if not report.scores:
            raise InputError(
                f"run {report.run} has no scores to compare: its evaluation is not done; see "
                f"`tributary report {report.run}`"
            )
    scores = [report.scores for report in reports]
    return Comparison(
        runs=[report.run for report in reports],
        scores=_spreads(scores),
        greedy=_spreads([report.greedy for report in reports]),
        gains=_spreads([_gains(of) for of in scores]),
        seconds=_seconds(reports),
    )


def _spreads(runs: Sequence[Scores]) -> dict[str, dict[str, Spread]]:
    """Of every cell that all runs have."""
    return {
        model: {
            domain: Spread.of([run[model][domain] for run in runs])
            for domain in domains_of({model: row})
            if all(domain in run.get(model, {}) for run in runs)
        }
        for model, row in runs[0].items()
        if all(model in run for run in runs)
    }


def _gains(scores: Scores) -> Scores:
    return {
        model: {domain: row[domain] - cold[domain] for domain in row if domain in cold}
        for model, row in scores.items()
        if (cold := scores.get(f"{model}-sft"))
    }


def _seconds(reports: Sequence[Report]) -> dict[str, Spread]:
    taken: dict[str, list[float]] = {}
    for report in reports:
        for stage in report.stages:
            if not stage.cached:
                taken.setdefault(stage.name, []).append(stage.seconds)
    return {name: Spread.of(values) for name, values in taken.items()}
