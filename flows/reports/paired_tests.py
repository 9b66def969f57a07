"""Whether two models differ on the same problems: McNemar's test, and a paired bootstrap. Pure.

Both answered each problem, so what differs is the problem's own difference: a hard problem is hard
for both. Problems are taken as a sample of all that could be asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
SEED = 0
_MOST_DRAWS = 2_000_000
"""in memory at once"""


@dataclass(frozen=True, slots=True)
class Paired:
    """How much the second of two models is better; scores are 0 to 1."""

    problems: int
    difference: float
    """mean over problems"""
    low: float
    high: float
    """95% interval: percentiles of the bootstrap"""
    better: int
    worse: int
    """problems on which the second is"""
    p: float
    """two-sided: how often so large a difference would be seen if there were none"""
    test: str
    """`McNemar` (exact) where every outcome is 0 or 1, else `paired bootstrap`"""


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Outcomes by problem, in the same order. Raises ValueError where their numbers differ, or are
    0."""
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} problems cannot be compared in pairs")
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    means = _bootstrap(differences)
    low, high = np.quantile(means, [0.025, 0.975]).tolist()
    is_binary = set(first) | set(second) <= {0.0, 1.0}
    p = mcnemar(better, worse) if is_binary else _bootstrap_p(differences, means)
    return Paired(
        len(first), float(differences.mean()), low, high, better, worse, p,
        "McNemar" if is_binary else "paired bootstrap",
    )  # fmt: skip


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided p: of the problems on which the two disagree, half would go either way.

    Example: 8 better and 1 worse: 2 x (1 + 9) / 2^9 = 0.039
    """
    disagreements = better + worse
    fewer = min(better, worse)
    tail = sum(math.comb(disagreements, k) for k in range(fewer + 1)) / 2**disagreements
    return min(1.0, 2 * tail)


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


def _bootstrap(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of problems drawn with replacement, `RESAMPLES` times; always the same draws."""
    count = len(differences)
    random = np.random.default_rng(SEED)
    at_once = max(1, _MOST_DRAWS // count)
    means = [
        differences[random.integers(0, count, (min(at_once, RESAMPLES - done), count))].mean(axis=1)
        for done in range(0, RESAMPLES, at_once)
    ]
    return np.concatenate(means)


def _bootstrap_p(differences: NDArray[np.float64], means: NDArray[np.float64]) -> float:
    """Under the hypothesis of no difference the resampled means are around 0 instead."""
    observed = abs(float(differences.mean()))
    around_zero = np.abs(means - differences.mean())
    # One more than counted, so that p is never 0 (Davison and Hinkley 1997, 4.2).
    return (int((around_zero >= observed - 1e-12).sum()) + 1) / (RESAMPLES + 1)
