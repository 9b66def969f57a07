"""What a finished reward model says of held-out pairs: is it right, and does it know how sure it
is?

The report is a file of the artifact, `held_out.json`, and a part of the run's page. Example:

    {"pairs": 4, "figures": {"held_out_accuracy": 0.5, "calibration_error": 0.3, ...},
     "by_margin": [{"name": "margin 0.1 to 0.2", "right": 1, "pairs": 3}, ...],
     "by_confidence": [{"name": "50% to 60% sure", "right": 0, "pairs": 1}, ...],
     "by_length": [{"name": "the better answer is longer", "right": 2, "pairs": 2}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.algorithms.reward_losses import Compares
from engines.batching import Comparison
from infra.store.manifest import StageWarning
from tasks.reward.spec import HELD_OUT_FILE

_MARGIN_GROUPS = 4
"""by the data's margins, about equally many pairs in each"""
_SURE_GROUPS = 5
"""of equal width, from 50% sure to 100%"""
_LENGTH_BIAS = 0.2
_CALIBRATION_ERROR, _FEWEST_CALIBRATED = 0.15, 50
"""from which a warning is due; of few pairs the error is large by chance"""


@dataclass(frozen=True, slots=True)
class PairGroup:
    """Pairs of one kind, e.g. PairGroup("margin 0.1 to 0.2", right=1, pairs=3)."""

    name: str
    right: int
    """of which the better answer has the larger reward"""
    pairs: int

    @property
    def accuracy(self) -> float:
        return self.right / self.pairs


@dataclass(frozen=True, slots=True)
class HeldOutReport:
    pairs: int
    figures: Mapping[str, float]
    """for the artifact's metrics"""
    by_margin: Sequence[PairGroup] = field(default=())
    by_confidence: Sequence[PairGroup] = field(default=())
    by_length: Sequence[PairGroup] = field(default=())

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield what the artifact keeps of it; nothing where no pair was held out."""
        if self.pairs:
            yield HELD_OUT_FILE, json.dumps(_plain(self), indent=1)


def report_of(
    compares: Compares, asked: Sequence[Comparison], rewards: Sequence[float]
) -> HeldOutReport:
    """Report on comparisons, whose answers have these rewards in turn: each pair of a list counts,
    and an answer that is good or bad counts as one that is compared with a reward of 0."""
    gaps, margins, longer = list[float](), list[float](), list[int]()
    said = iter(rewards)
    # Where the data say margins, one of 0 is the least of them.
    has_margins = any(each.margin for each in asked)
    errors, scores = list[float](), list[float]()
    for each in asked:
        given = [next(said) for _ in each.answers]
        if compares == "scores":
            errors.append(given[0] - each.worth[0])
            scores.append(each.worth[0])
        elif compares == "goodness" and each.worth[0] != 0.5:
            gaps.append(given[0] if each.worth[0] > 0.5 else -given[0])
            margins.append(0.0)
            longer.append(0)
        for better, worse in permutations(range(len(given)), 2):
            if each.worth[better] > each.worth[worse]:
                gaps.append(given[better] - given[worse])
                apart = each.worth[better] - each.worth[worse]
                margins.append(each.margin if has_margins else apart)
                sizes = [len(each.answers[side].tokens) for side in (better, worse)]
                longer.append(sizes[0] - sizes[1])
    return _of_scores(errors, scores) if errors else held_out_report(gaps, margins, longer)


def _of_scores(errors: Sequence[float], scores: Sequence[float]) -> HeldOutReport:
    """Mean distance from the scores, and the share of their variance that is explained."""
    error, score = np.array(errors), np.array(scores)
    figures = {"held_out_error": float(np.abs(error).mean())}
    if score.max() > score.min():
        spread = ((score - score.mean()) ** 2).sum()
        figures["held_out_explained"] = float(1 - (error**2).sum() / spread)
    return HeldOutReport(0, figures)


def held_out_report(
    gaps: Sequence[float], margins: Sequence[float], longer: Sequence[int]
) -> HeldOutReport:
    """Report on each pair: by how much the better answer's reward is the larger one, by how much
    the data say that it is better, and how many tokens more it has."""
    count = len(gaps)
    if not count:
        return HeldOutReport(0, {})
    gap, margin, more = np.array(gaps), np.array(margins, np.float64), np.array(longer, np.int64)
    right = gap > 0
    by_length = [
        *_group("the better answer is longer", right, more > 0),
        *_group("the better answer is shorter", right, more < 0),
    ]
    figures = {
        "held_out_accuracy": float(right.mean()),
        "calibration_error": _calibration_error(gap, right),
        **_by_median(right, margin),
    }
    if len(by_length) == 2:
        longer_right, shorter_right = (group.accuracy for group in by_length)
        figures["accuracy_better_longer"] = longer_right
        figures["accuracy_better_shorter"] = shorter_right
        figures["length_bias"] = longer_right - shorter_right
    return HeldOutReport(
        count, figures, _by_margin(right, margin), _by_confidence(gap, right), by_length
    )


def _group(name: str, right: NDArray[np.bool_], are: NDArray[np.bool_]) -> Iterator[PairGroup]:
    if are.any():
        yield PairGroup(name, int(right[are].sum()), int(are.sum()))


def _by_median(right: NDArray[np.bool_], margin: NDArray[np.float64]) -> dict[str, float]:
    """Accuracy of pairs with at most and with more than the median margin, where margins differ."""
    if margin.max() == margin.min():
        return {}
    wide = margin > np.median(margin)
    groups = {"accuracy_small_margin": ~wide, "accuracy_large_margin": wide}
    return {name: float(right[are].mean()) for name, are in groups.items() if are.any()}


def _by_margin(right: NDArray[np.bool_], margin: NDArray[np.float64]) -> list[PairGroup]:
    """Groups end at quartiles of the margins; equal margins are never parted."""
    if margin.max() == margin.min():
        return []
    shares = np.arange(1, _MARGIN_GROUPS) / _MARGIN_GROUPS
    ends = np.quantile(margin, shares, method="inverted_cdf")
    number = np.searchsorted(ends, margin, side="left")
    found: list[PairGroup] = []
    for each in np.unique(number):
        are = number == each
        low, high = margin[are].min(), margin[are].max()
        name = f"margin {low:.3g}" if low == high else f"margin {low:.3g} to {high:.3g}"
        found += _group(name, right, are)
    return found


def _sureness(gap: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The probability that the model gives to the answer that it prefers, sigmoid of the distance
    of the rewards (Bradley and Terry), and the number of its group."""
    sure = 0.5 * (1 + np.tanh(np.abs(gap) / 2))
    number = np.minimum((2 * sure - 1) * _SURE_GROUPS, _SURE_GROUPS - 1).astype(np.int64)
    return sure, number


def _calibration_error(gap: NDArray[np.float64], right: NDArray[np.bool_]) -> float:
    """Mean distance between how sure it is and how often it is right, over groups of pairs of which
    it is about equally sure, weighted by their size (Naeini et al. 2015, "Obtaining well calibrated
    probabilities using Bayesian binning").
    """
    sure, number = _sureness(gap)
    groups = [number == each for each in np.unique(number)]
    return float(sum(abs(right[are].mean() - sure[are].mean()) * are.mean() for are in groups))


def _by_confidence(gap: NDArray[np.float64], right: NDArray[np.bool_]) -> list[PairGroup]:
    _, number = _sureness(gap)
    width = 50 // _SURE_GROUPS
    names = [f"{50 + n * width}% to {50 + (n + 1) * width}% sure" for n in range(_SURE_GROUPS)]
    return [g for n, name in enumerate(names) for g in _group(name, right, number == n)]


def _plain(report: HeldOutReport) -> dict[str, Any]:
    def listed(groups: Sequence[PairGroup]) -> list[dict[str, Any]]:
        return [{"name": g.name, "right": g.right, "pairs": g.pairs} for g in groups]

    return {
        "pairs": report.pairs,
        "figures": dict(report.figures),
        "by_margin": listed(report.by_margin),
        "by_confidence": listed(report.by_confidence),
        "by_length": listed(report.by_length),
    }


def held_out_warnings(report: HeldOutReport, *, has_margins: bool) -> Iterator[StageWarning]:
    """`has_margins`: its loss drew rewards apart by margins, which a probability knows nothing
    of."""
    yield from _length_bias(report.figures)
    error = report.figures.get("calibration_error", 0.0)
    if report.pairs >= _FEWEST_CALIBRATED and error > _CALIBRATION_ERROR:
        yield StageWarning(
            what=f"how sure it is and how often it is right differ by {error:.0%} on average, over"
            f" {report.pairs} held-out pairs",
            cause="its loss drew the rewards of pairs apart by their margins"
            if has_margins
            else "it was trained for too long on its pairs, or for too few steps",
            advice="set `loss.margins: false` if rewards are to say how sure it is"
            if has_margins
            else "compare its accuracy in training with that on held-out pairs; change `steps`",
            figures={"calibration_error": error, "pairs": float(report.pairs)},
        )


def _length_bias(found: Mapping[str, float]) -> Iterator[StageWarning]:
    """Where it judges pairs much better whose better answer is the longer, or the shorter one."""
    bias = found.get("length_bias", 0.0)
    if abs(bias) > _LENGTH_BIAS:
        longer, shorter = found["accuracy_better_longer"], found["accuracy_better_shorter"]
        yield StageWarning(
            what=f"it is right in {longer:.0%} of the held-out pairs whose better answer is longer,"
            f" and in {shorter:.0%} of the others",
            cause=f"it learned to prefer {'longer' if bias > 0 else 'shorter'} answers",
            advice="balance the data by length, or add a penalty on length where it is a reward",
            figures={"longer": longer, "shorter": shorter},
        )
