"""Compares two models, or two runs, on the same problems: difference, interval and test. Pure.

Terminal, page, JSON, MLflow, Prefect, comparisons of runs and rounds all ask this module, so that
one difference has one interval and one p everywhere. Both models answered each problem, so what
counts is the problem's own difference: a hard problem is hard for both. Problems are taken as a
sample of all that could be asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field

from engines.rollout.metrics import NOTHINK
from infra.config import Found
from tasks.evaluate.score_statistics import Z95, judged_in_both, mean, problem_means

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


SURE = 0.05
"""p below which a difference is more than chance; only this calls a model better or best"""
FLIPS = 10_000
_ALL_FLIPS_UP_TO = 13
"""problems that differ: all their 2^n signs are tried"""
_NORMAL_FROM = 2_000
"""problems that differ: their sum is normal"""
ProblemOutcomes = Mapping[tuple[str, str], list[float | None]]
"""by model and domain: mean outcome of each problem, 0 to 1, in the problems' order; None: no
verdict"""
_DECIDES = ("curriculum", "outcome", "driver", "max_new_tokens", "max_turns")
"""what makes a domain's problems, and how an answer to them is judged"""


@dataclass(frozen=True, slots=True)
class Paired:
    """How much the second of two models is better."""

    problems: int
    difference: float
    """mean over problems"""
    low: float
    high: float
    """95% interval of it, see `interval_of`"""
    better: int
    worse: int
    """problems on which the second is"""
    p: float
    """two-sided: how often so large a difference would be seen if there were none"""
    test: str
    """`McNemar` (exact) where every outcome is 0 or 1, else `sign flips`"""


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Outcomes by problem, in the same order. Raises ValueError where their numbers differ, or are
    0."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} problems cannot be compared in pairs")
    lowest, highest = min(*first, *second), max(*first, *second)
    return _paired(first, second, 1.0 if lowest >= 0 and highest <= 1 else highest - lowest)


def _paired(first: Sequence[float], second: Sequence[float], scale: float) -> Paired:
    """`scale`: how far apart two outcomes may be."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    is_binary = {*first, *second} <= {0.0, 1.0}
    low, high = interval_of(differences, scale)
    return Paired(
        len(first), sum(differences) / len(first), low, high, better, worse,
        mcnemar(better, worse) if is_binary else sign_flips(differences),
        "McNemar" if is_binary else "sign flips",
    )  # fmt: skip


def paired_over_domains(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]
) -> Paired:
    """Two models by their means over domains, each of which counts alike, however many problems it
    has. Outcomes of 0 to 1 by domain and problem; raises ValueError as `paired` does.

    Example: of 1 and 3 problems, those of the first weigh 4 / (2 x 1) = 2, the others 4 / (2 x 3).
    """
    count = sum(map(len, first))
    weights = [count / (len(first) * len(row)) for row in first for _ in row]
    ours, theirs = ([value for row in rows for value in row] for rows in (first, second))
    if len(set(map(len, first))) == 1:
        return paired(ours, theirs)
    scaled = [[v * w for v, w in zip(of, weights, strict=True)] for of in (ours, theirs)]
    return _paired(scaled[0], scaled[1], max(weights))


def interval_of(differences: Sequence[float], scale: float) -> tuple[float, float]:
    """95% interval of the mean difference of paired outcomes that are at most `scale` apart.

    The interval of Agresti and Min (2005) for matched pairs: half a problem is added to each of the
    four ways in which two models can answer one, so that few problems, or problems that all moved
    alike, do not claim certainty. Differences that are no yes or no count by their own variance.

    Example: 8 problems without a difference, of outcomes 0 to 1: mean 0 of 10, variance 1 / 10,
    so -0.196 to +0.196.
    """
    count = len(differences) + 2
    centre = sum(differences) / count
    variance = (sum(d * d for d in differences) + scale * scale) / count - centre * centre
    half = Z95 * math.sqrt(max(0.0, variance) / count)
    return max(-scale, centre - half), min(scale, centre + half)


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided p: of the problems on which the two disagree, half would go either way.

    Example: 8 better and 1 worse: 2 x (1 + 9) / 2^9 = 0.039
    """
    disagreements = better + worse
    fewer = min(better, worse)
    tail = sum(math.comb(disagreements, k) for k in range(fewer + 1)) / 2**disagreements
    return min(1.0, 2 * tail)


def sign_flips(differences: Sequence[float]) -> float:
    """Two-sided p of the paired permutation test (Fisher 1935): if the models were alike, each
    problem's difference could as well have had the other sign. All signs of few problems are tried,
    else `FLIPS` drawn ones, always the same.

    Example: differences .5, .25 and .25: 2 of 8 signs give a sum as far from 0 as 1, so p is .25.
    """
    import numpy as np

    moved = np.asarray([d for d in differences if d], np.float64)
    observed = abs(float(moved.sum())) - 1e-12
    if len(moved) >= _NORMAL_FROM:
        return math.erfc(observed / math.sqrt(2 * float(moved @ moved)))
    if len(moved) <= _ALL_FLIPS_UP_TO:
        codes = np.arange(2 ** len(moved))[:, None]
        bits = (codes >> np.arange(len(moved))) & 1
        return float((np.abs(_sums(bits, moved)) >= observed).mean())
    bits = np.random.default_rng(0).integers(0, 2, (FLIPS, len(moved)), dtype=np.int8)
    # One more than counted, so that p is never 0 (Davison and Hinkley 1997, 4.2).
    return (int((np.abs(_sums(bits, moved)) >= observed).sum()) + 1) / (FLIPS + 1)


def _sums(bits: NDArray[np.integer], moved: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of the differences with the sign + where a row's bit is 1, else -."""
    return 2 * (bits @ moved) - moved.sum()


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are (Holm 1979), in the order given.

    Example: [0.01, 0.04, 0.03] -> [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return adjusted


def problem_samples(
    scores: Mapping[str, Any],
) -> Mapping[tuple[str, str], list[list[float | None]]]:
    """Return, by model and domain, the outcomes of each problem's samples at temperature 1."""
    return {
        (cell["model"], cell["domain"]): cell["outcomes"]
        for cell in scores.get("cells", [])
        if cell["kind"] == "score"
    }


def problem_outcomes(scores: Mapping[str, Any]) -> ProblemOutcomes:
    """Return the outcomes of what was sampled at temperature 1."""
    return {cell: problem_means(rows) for cell, rows in problem_samples(scores).items()}


class PairedScore(Found):
    """A model on a domain in the second run against the first one."""

    model: str
    domain: str
    """or a task of lm-eval with its metric"""
    kind: str
    """`score` at temperature 1, `greedy`, a setting of `evaluate.sampling`, or `task`"""
    first: float
    second: float
    difference: float
    low: float
    high: float
    """95% interval of the difference"""
    better: int
    worse: int
    """of `problems`, those on which the second run is"""
    problems: int
    p: float
    """two-sided"""
    p_adjusted: float
    """for all tests of the two runs (Holm); models that are the same in both are not tested"""
    test: str


class PairOfRuns(Found):
    first: str
    second: str
    scores: list[PairedScore]
    """empty: the two have no problem in common, or only models that are the same"""
    same: list[str] = Field(default_factory=list[str])
    """models that are one artifact in both runs, so that nothing is compared"""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run as its evaluation's artifact has it."""

    run: str
    digest: str
    identity: Mapping[str, Any]
    """settings of the evaluation"""
    scores: Mapping[str, Any]
    """content of `scores.json`"""
    task_identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """settings of lm-eval's stage"""
    task_scores: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """content of `task_scores.json`"""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    """digests of the artifacts that were scored, by model"""


def pair_of(first: ScoredRun, second: ScoredRun) -> PairOfRuns:
    """Compare every model and domain that both scored on the same problems, sampled alike."""
    if first.digest == second.digest:
        why = "both have one and the same evaluation"
        return PairOfRuns(first=first.run, second=second.run, scores=[], why_not=why)
    cells = [*_cells(first, second), *_task_cells(first, second)]
    same = [name for name in first.models if first.models[name] == second.models.get(name)]
    cells = [(ours, theirs) for ours, theirs in cells if _artifact(theirs["model"]) not in same]
    made = [_score(ours, theirs) for ours, theirs in cells]
    adjusted = holm([score.p for score in made])
    scores = [
        score.model_copy(update={"p_adjusted": p}) for score, p in zip(made, adjusted, strict=True)
    ]
    why = "" if scores else _why_not(first, second, same)
    return PairOfRuns(first=first.run, second=second.run, scores=scores, same=same, why_not=why)


def _artifact(model: str) -> str:
    """Return what the evaluation's input is called: a model is scored with and without thinking."""
    return model.removesuffix(NOTHINK)


def _cells(
    first: ScoredRun, second: ScoredRun
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    ours = {(c["model"], c["domain"], c["kind"]): c for c in first.scores.get("cells", [])}
    for cell in second.scores.get("cells", []):
        other = ours.get((cell["model"], cell["domain"], cell["kind"]))
        asked = _problems(first, cell["domain"])
        if (
            other is not None
            and asked is not None
            and asked == _problems(second, cell["domain"])
            and len(other["outcomes"]) == len(cell["outcomes"])
            and _of_both(other, cell)[0]
        ):
            yield other, cell


def _of_both(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """The problems' means, of those on which both have a verdict."""
    return judged_in_both(problem_means(first["outcomes"]), problem_means(second["outcomes"]))


def _task_cells(
    first: ScoredRun, second: ScoredRun
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Metrics that are means over the same documents, asked in the same way."""
    if _asked(first) != _asked(second):
        return
    ours = {(c["model"], c["task"], c["metric"]): c for c in first.task_scores.get("cells", [])}
    for cell in second.task_scores.get("cells", []):
        other = ours.get((cell["model"], cell["task"], cell["metric"]))
        if other is not None and len(other["outcomes"]) == len(cell["outcomes"]) > 0:
            yield _as_cell(other), _as_cell(cell)


def _asked(run: ScoredRun) -> Any:
    """Return what decides which documents a task has and how they are asked."""
    settings = run.task_identity.get("settings", {})
    asked = {name: value for name, value in settings.items() if name not in ("tasks", "fleet")}
    return run.task_identity.get("version"), asked


def _as_cell(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """In the form of `scores.json`: one value a problem."""
    outcomes = [[value] for value in cell["outcomes"]]
    name = f"{cell['task']} {cell['metric']}"
    found = {"model": cell["model"], "domain": name, "kind": "task", "outcomes": outcomes}
    return found | {"less_is_better": cell.get("less_is_better", False)}


def _score(first: Mapping[str, Any], second: Mapping[str, Any]) -> PairedScore:
    ours, theirs = _of_both(first, second)
    found = paired(ours, theirs)
    better, worse = found.better, found.worse
    if second.get("less_is_better"):
        better, worse = worse, better
    return PairedScore(
        model=second["model"], domain=second["domain"], kind=second["kind"],
        first=mean(ours), second=mean(theirs), difference=found.difference,
        low=found.low, high=found.high, better=better, worse=worse,
        problems=found.problems, p=found.p, p_adjusted=found.p, test=found.test,
    )  # fmt: skip


def _problems(run: ScoredRun, domain: str) -> Any:
    """Return what decides which problems a domain's are; None where it is not known."""
    domains = {d["name"]: d for d in run.identity.get("domains", [])}
    if domain not in domains:
        return None
    parts = {name: domains[domain].get(name) for name in _DECIDES}
    return run.identity.get("seed"), run.identity["settings"]["problems"], parts


def _why_not(first: ScoredRun, second: ScoredRun, same: Sequence[str]) -> str:
    seeds = first.identity.get("seed"), second.identity.get("seed")
    if seeds[0] != seeds[1]:
        return f"their held-out problems are of different seeds, {seeds[0]} and {seeds[1]}"
    if not first.scores or not second.scores:
        return "no model was scored in both on the same documents of a task"
    counts = [run.identity.get("settings", {}).get("problems") for run in (first, second)]
    if counts[0] != counts[1]:
        return f"they scored {counts[0]} and {counts[1]} problems of each domain"
    if same:
        return f"what both scored on the same problems is the same: {', '.join(same)}"
    return "no model was scored in both on the same problems of a domain"
