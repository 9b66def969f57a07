"""Compares runs: mean and spread of one recipe under several seeds, the first in pairs with the
others, and the page of it.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from flows.diff import differences, listed
from flows.plan import EVALUATE, LM_EVAL
from flows.reports.paired_tests import PairOfRuns
from flows.reports.rendering import render
from flows.reports.report import Report, Scores, domains_of
from flows.running.records import RunHead, RunRecord
from infra.config import Found
from infra.errors import InputError
from infra.home import home, write_whole

_MAY_DIFFER = ("name", "seed", "determinism", "resources", "storage", "tracking")
_MOST_LETTERS = 120
"""of a file's name"""


class Spread(Found):
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
        """Return how many standard errors of the mean it lies from 0; None of a single run, and
        where all runs are equal: they say nothing of the error."""
        error = self.deviation / math.sqrt(len(self.values))
        return self.mean / error if error else None

    @property
    def is_equal(self) -> bool:
        """Return whether several runs gave the same number."""
        return len(self.values) > 1 and len(set(self.values)) == 1


class Comparison(Found):
    """What `tributary compare --json` prints; a model that some run lacks is left out."""

    runs: list[str]
    equal: list[list[str]]
    """runs that share one evaluation, so that they are one result and not several"""
    scores: dict[str, dict[str, Spread]]
    """model -> domain -> outcome at temperature 1"""
    greedy: dict[str, dict[str, Spread]]
    best_of: dict[str, dict[str, dict[str, Spread]]]
    """k -> model -> domain -> expected best of k samples at temperature 1 (pass@k)"""
    sampled: dict[str, dict[str, dict[str, Spread]]] = Field(
        default_factory=dict[str, dict[str, dict[str, Spread]]]
    )
    """setting of `evaluate.sampling` -> model -> domain -> outcome"""
    tasks: dict[str, dict[str, Spread]] = Field(default_factory=dict[str, dict[str, Spread]])
    """model -> task and metric of lm-eval -> its value"""
    gains: dict[str, dict[str, Spread]]
    """model -> domain -> its last version's score minus its first one's, where both were scored"""
    seconds: dict[str, Spread]
    """stage -> wall time, of the runs that did not find it in the store"""
    differences: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])
    """run -> how its recipe differs from the first run's; empty where all are of one recipe under
    any seeds. Otherwise `scores`, `greedy`, `best_of`, `tasks`, `gains` and `seconds` are empty: a
    mean over different recipes says nothing"""
    pairs: list[PairOfRuns] = Field(default_factory=list[PairOfRuns])
    """the first run with each other one"""


def compare(reports: Sequence[Report], pairs: Sequence[PairOfRuns] = ()) -> Comparison:
    """Compare runs of one recipe. Raises InputError if a run has no scores yet."""
    require_scores(reports)
    scores = [report.scores for report in reports]
    return Comparison(
        runs=[report.run for report in reports],
        equal=_equal(reports),
        pairs=list(pairs),
        scores=_spreads(scores),
        greedy=_spreads([report.greedy for report in reports]),
        best_of={
            k: _spreads([report.best_of[k] for report in reports])
            for k in reports[0].best_of
            if all(k in report.best_of for report in reports)
        },
        sampled={
            name: _spreads([report.sampled[name].scores for report in reports])
            for name in reports[0].sampled
            if all(name in report.sampled for report in reports)
        },
        tasks=_spreads([report.tasks for report in reports]),
        gains=_spreads([_gains(report) for report in reports]),
        seconds=_seconds(reports),
    )


def compare_recipes(
    reports: Sequence[Report], pairs: Sequence[PairOfRuns], different: Mapping[str, list[str]]
) -> Comparison:
    """Compare runs of different recipes: pairs alone. Raises InputError if a run has no scores yet,
    and, with what differs, unless some pair has problems in common."""
    require_scores(reports)
    if not any(pair.scores for pair in pairs):
        first = reports[0].run
        other, lines = next(iter(different.items()))
        why = next(pair.why_not for pair in pairs if pair.second == other)
        raise InputError(
            f"runs {first} and {other} are of different recipes, so a mean over them is"
            f" meaningless, and there is nothing to compare in pairs: {why}."
            f" {first} -> {other}:\n" + "\n".join(f"  {line}" for line in lines)
        )
    return Comparison(
        runs=[report.run for report in reports], equal=_equal(reports), scores={}, greedy={},
        best_of={}, gains={}, seconds={}, differences=dict(different), pairs=list(pairs),
    )  # fmt: skip


def require_scores(reports: Sequence[Report]) -> None:
    """Raises InputError for a run without scores."""
    for report in reports:
        if not report.scores and not report.tasks:
            raise InputError(
                f"run {report.run} has no scores to compare: it was to evaluate nothing, or has"
                f" not done it yet; see `tributary report {report.run}`"
            )


def recipe_differences(heads: Sequence[RunHead]) -> dict[str, list[str]]:
    """Run -> how its recipe differs from the first run's in what a mean over runs needs equal; runs
    that do not differ are left out."""
    first, *others = heads
    found = {o.run: list(differences(_compared(first), _compared(o))) for o in others}
    return {
        run: [line.strip() for line in listed(lines).splitlines()]
        for run, lines in found.items()
        if lines
    }


def _compared(head: RunHead) -> dict[str, Any]:
    """Return what must be equal: not what a run is called, where it runs and what it keeps."""
    recipe = {key: value for key, value in head.recipe.items() if key not in _MAY_DIFFER}
    return {"flow": head.flow, "arguments": head.arguments, **recipe}


def _equal(reports: Sequence[Report]) -> list[list[str]]:
    of_evaluation: dict[str, list[str]] = {}
    for report in reports:
        digests = [s.digest for s in report.stages if s.name in (EVALUATE, LM_EVAL)]
        of_evaluation.setdefault("/".join(digests), []).append(report.run)
    return [runs for runs in of_evaluation.values() if len(runs) > 1]


def _spreads(runs: Sequence[Scores]) -> dict[str, dict[str, Spread]]:
    """Return the spread of every cell that all runs have."""
    return {
        model: {
            domain: Spread.of([run[model][domain] for run in runs])
            for domain in domains_of({model: row})
            if all(domain in run.get(model, {}) for run in runs)
        }
        for model, row in runs[0].items()
        if all(model in run for run in runs)
    }


def _gains(report: Report) -> Scores:
    """Return the gains of models with several versions."""
    scores = report.scores
    return {
        model: {domain: scores[model][domain] - first[domain] for domain in first if domain in row}
        for model, versions in report.versions.items()
        if len(versions) > 1 and (row := scores.get(model)) and (first := scores.get(versions[0]))
    }


def _seconds(reports: Sequence[Report]) -> dict[str, Spread]:
    taken: dict[str, list[float]] = {}
    for report in reports:
        for stage in report.stages:
            if not stage.cached:
                taken.setdefault(stage.name, []).append(stage.seconds)
    return {name: Spread.of(values) for name, values in taken.items()}


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A line of the page's first table."""

    run: str
    recipe: str
    seed: int
    state: str
    seconds: float
    has_page: bool
    """its own page is in the same folder"""


def write_comparison(
    found: Comparison, records: Sequence[RunRecord], reports: Sequence[Report]
) -> Path:
    """Write the page to the home; returns its path, the same for the same runs."""
    folder = home() / "reports"
    path = folder / f"{_name(found.runs)}.html"
    text = comparison_page(found, _runs(records, reports, folder))
    write_whole(path, text.encode(errors="replace"))
    return path


def comparison_page(found: Comparison, runs: Sequence[ComparedRun]) -> str:
    """The whole page as HTML."""
    averaged = {"sampled at temperature 1": found.scores, "greedy": found.greedy} | {
        f"pass@{k}": spreads for k, spreads in found.best_of.items()
    }
    averaged |= {f"sampled {name}": of for name, of in found.sampled.items()}
    averaged["lm-eval"] = found.tasks
    return render(
        "compare.html",
        found=found,
        runs=runs,
        averaged={title: table for title, table in averaged.items() if table},
    )


def _runs(
    records: Sequence[RunRecord], reports: Sequence[Report], folder: Path
) -> list[ComparedRun]:
    recipes = [record.recipe() for record in records]
    return [
        ComparedRun(
            report.run, recipe.name, recipe.seed, report.state, report.seconds,
            (folder / f"{report.run}.html").is_file(),
        )
        for recipe, report in zip(recipes, reports, strict=True)
    ]  # fmt: skip


def _name(runs: Sequence[str]) -> str:
    """Readable for two runs, and never too long for a file system."""
    whole = "-and-".join(runs)
    if len(whole) > _MOST_LETTERS:
        whole = f"{len(runs)}-runs-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    return f"compare-{whole}"
