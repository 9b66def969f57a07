"""What a set of outcomes says: mean, standard error, best of k, and a 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from infra.config import Found

Z95 = 1.959964
"""standard normal quantile at 97.5%"""
_EQUAL = 1e-9
"""what values may differ by and be equal"""
CUTTABLE = "conversation"
"""the driver whose rollouts tell what fewer turns would have come to"""


def mean(values: Sequence[float]) -> float:
    """0 of no values."""
    return sum(values) / len(values) if values else 0.0


def verdicts(outcomes: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return the outcomes of each problem's samples that were judged."""
    return [[value for value in samples if value is not None] for samples in outcomes]


def problem_means(outcomes: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return each problem's mean; None for a problem without a verdict. Example: [[1, 0], [None]]
    -> [0.5, None]"""
    return [mean(of) if of else None for of in verdicts(outcomes)]


def judged_in_both(
    first: Sequence[float | None], second: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """The problems' means where both have one. Raises ValueError where their numbers differ.

    Example: [0.5, None, 1], [0, 1, 1] -> [0.5, 1], [0, 1]
    """
    pairs = zip(first, second, strict=True)
    kept = [(a, b) for a, b in pairs if a is not None and b is not None]
    return [a for a, _ in kept], [b for _, b in kept]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of independent values; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    variance = sum((v - centre) ** 2 for v in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


def best_of(outcomes: Sequence[float], k: int) -> float:
    """Expected best outcome of k samples, estimated without bias from n >= k of one problem.

    For outcomes of 0 and 1 this is pass@k = 1 - C(n - c, k) / C(n, k) with c right ones (Chen et
    al., arXiv 2107.03374). Otherwise each outcome counts with the probability that it is the best
    of k drawn without replacement. Raises ValueError for k below 1 or above n.
    """
    n = len(outcomes)
    if not 1 <= k <= n:
        raise ValueError(f"best of {k} needs at least {k} samples, and there are {n}")
    ranked = sorted(outcomes)
    chosen = math.comb(n, k)
    return sum(value * math.comb(rank, k - 1) for rank, value in enumerate(ranked)) / chosen


def chosen_by(proxies: Sequence[float], outcomes: Sequence[float], n: int) -> float:
    """Expected outcome of that one of n samples which a proxy likes best, estimated without bias
    from N >= n samples of one problem: the mean over all draws of n without replacement (Nakano et
    al., arXiv 2112.09332; Gao et al., arXiv 2210.10760). Among equal proxies chance decides.

    Example: proxies 1, 2, 3, outcomes 0, 1, 0, n 2: 2 is the best of one draw of three -> 1/3.
    Raises ValueError for n below 1 or above N.
    """
    count = len(outcomes)
    if not 1 <= n <= count:
        raise ValueError(f"best of {n} needs at least {n} samples, and there are {count}")
    below, total = 0, 0.0
    for proxy in sorted(set(proxies)):
        equal = [o for p, o in zip(proxies, outcomes, strict=True) if p == proxy]
        upto = below + len(equal)
        total += (math.comb(upto, n) - math.comb(below, n)) * mean(equal)
        below = upto
    return total / math.comb(count, n)


def best_of_n_kl(n: int) -> float:
    """Return how far the best of n samples is from one sample, KL in nats: log n - (n - 1) / n."""
    return math.log(n) - (n - 1) / n


def powers_of_two(highest: int) -> list[int]:
    """2, 4, 8, ... up to and with `highest`."""
    return [2**power for power in range(1, highest.bit_length()) if 2**power <= highest]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the mean of independent values in [0, 1], as (low, high).

    Wilson's score interval, whose trials are the values where each is 0 or 1, and else as many as
    would have the values' standard error (Korn and Graubard 1998). So 128 of 128 right does not
    claim certainty.
    Example: 1 of 8 right -> (0.0224, 0.4709)
    """
    if not values:
        return 0.0, 1.0
    centre, trials = mean(values), float(len(values))
    spread = centre * (1 - centre)
    # Of equal values the rounding of their means would be taken for what they vary.
    if max(values) - min(values) > _EQUAL and not {*values} <= {0, 1}:
        trials = spread / standard_error(values) ** 2
    z2 = Z95**2
    middle = (centre + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(spread / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


class ScalingPoint(Found):
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


class Scaling(Found):
    """Empty where nothing was sampled more than once, or no rollout may take a second turn."""

    samples: Lines = Field(default_factory=dict[str, dict[str, list[ScalingPoint]]])
    turns: Lines = Field(default_factory=dict[str, dict[str, list[ScalingPoint]]])

    def metrics(self) -> dict[int, dict[str, float]]:
        """Return by budget what MLflow draws as curves, e.g. {4: {"scaling/samples/m/d": 0.5}}."""
        found: dict[int, dict[str, float]] = {}
        for by, lines in (("samples", self.samples), ("turns", self.turns)):
            for model, domains in lines.items():
                for domain, points in domains.items():
                    for point in points:
                        at = found.setdefault(point.budget, {})
                        at[f"scaling/{by}/{model}/{domain}"] = point.score
                        at[f"scaling/{by}-solved/{model}/{domain}"] = point.solved
        return dict(sorted(found.items()))


class SettingScores(Found):
    """The scores of one more way to sample: as the tables of temperature 1, by model and domain."""

    scores: dict[str, dict[str, float]]
    no_verdict: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    best_of: dict[str, dict[str, dict[str, float]]]
    intervals: dict[str, dict[str, dict[str, tuple[float, float]]]]


def by_samples(outcomes: Sequence[Sequence[float | None]]) -> list[ScalingPoint]:
    """Return the curve of each problem's sample outcomes, each point over the problems with so many
    verdicts; empty for one sample each.

    Example: [[1, 0, 0, 0]] -> 0.25 of 1 sample, 0.5 of 2, 1 of 4
    """
    judged, points = verdicts(outcomes), list[ScalingPoint]()
    for k in budgets(max(map(len, judged), default=0)):
        enough = [of for of in judged if len(of) >= k]
        scores = [best_of(of, k) for of in enough]
        points.append(_point(k, scores, [best_of(_solved(of), k) for of in enough]))
    return points


def by_turns(
    outcomes: Sequence[Sequence[float | None]], turns: Sequence[Sequence[int]], limit: int
) -> list[ScalingPoint]:
    """Return the curve of each problem's sample outcomes and the turns that these took, under
    `limit`; empty for a limit of 1.

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
