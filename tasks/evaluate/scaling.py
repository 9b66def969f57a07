"""Test-time scaling: the score that a budget of samples, or of turns, buys.

Samples: of k answers the verifier's best counts, estimated without bias from all n. Turns: with a
limit of t turns, a rollout that took more would have been cut off at the t-th with an outcome of 0,
and one that took no more would have been the same; so the finished rollouts give the exact score
of every lower limit. That holds for the driver `conversation` alone: seeds hang on the turn, and
it tells neither the model nor the environment how many turns there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from infra.config import Config
from tasks.evaluate.statistics import best_of, interval, mean, verdicts

CUTTABLE = "conversation"
"""the driver whose rollouts tell what fewer turns would have come to"""


class ScalingPoint(Config):
    """Values are 0 to 1, means over problems."""

    budget: int
    """samples of a problem, or most turns of a rollout"""
    score: float
    """mean outcome; of several samples, of the one that the verifier likes best"""
    low: float
    high: float
    """95% interval of the score"""
    solved: float
    """share of problems with an outcome of 1; of several samples, in at least one: pass@k"""


Lines = dict[str, dict[str, list[ScalingPoint]]]
"""model -> domain -> points, by rising budget"""


class Scaling(Config):
    """Empty where nothing was sampled more than once, or no rollout may take a second turn."""

    samples: Lines = Field(default_factory=dict[str, dict[str, list[ScalingPoint]]])
    turns: Lines = Field(default_factory=dict[str, dict[str, list[ScalingPoint]]])

    def metrics(self) -> dict[int, dict[str, float]]:
        """By budget: what MLflow draws as curves, e.g. {4: {"scaling/samples/m/d": 0.5}}."""
        found: dict[int, dict[str, float]] = {}
        for by, lines in (("samples", self.samples), ("turns", self.turns)):
            for model, domains in lines.items():
                for domain, points in domains.items():
                    for point in points:
                        at = found.setdefault(point.budget, {})
                        at[f"scaling/{by}/{model}/{domain}"] = point.score
                        at[f"scaling/{by}-solved/{model}/{domain}"] = point.solved
        return dict(sorted(found.items()))


def by_samples(outcomes: Sequence[Sequence[float | None]]) -> list[ScalingPoint]:
    """Of each problem's sample outcomes; empty for one sample each.

    Example: [[1, 0, 0, 0]] -> 0.25 of 1 sample, 0.5 of 2, 1 of 4
    """
    judged = [of for of in verdicts(outcomes) if of]
    return [
        _point(
            k,
            [best_of(samples, k) for samples in judged],
            [best_of(_solved(samples), k) for samples in judged],
        )
        for k in budgets(min(map(len, judged), default=0))
    ]


def by_turns(
    outcomes: Sequence[Sequence[float | None]], turns: Sequence[Sequence[int]], limit: int
) -> list[ScalingPoint]:
    """Of each problem's sample outcomes and the turns that these took, under `limit`; empty for a
    limit of 1.

    Example: [[1, 1]], [[1, 3]], 4 -> 0.5 of 1 turn, 0.5 of 2, 1 of 4
    """
    points: list[ScalingPoint] = []
    for most in budgets(limit) if any(verdicts(outcomes)) else []:
        cut = [
            [
                outcome if outcome is None or taken <= most else 0.0
                for outcome, taken in zip(of, its, strict=True)
            ]
            for of, its in zip(outcomes, turns, strict=True)
        ]
        reached = [of for of in verdicts(cut) if of]
        solved = [mean(_solved(of)) for of in reached]
        points.append(_point(most, [mean(of) for of in reached], solved))
    return points


def budgets(highest: int) -> list[int]:
    """1, 2, 4, ... and `highest`; none where there is nothing to choose.

    Example: 6 -> [1, 2, 4, 6]
    """
    if highest < 2:
        return []
    powers = [2**power for power in range(highest.bit_length()) if 2**power < highest]
    return [*powers, highest]


def _solved(outcomes: Sequence[float]) -> list[float]:
    return [float(outcome >= 1.0) for outcome in outcomes]


def _point(budget: int, scores: Sequence[float], solved: Sequence[float]) -> ScalingPoint:
    low, high = interval(scores)
    return ScalingPoint(budget=budget, score=mean(scores), low=low, high=high, solved=mean(solved))
