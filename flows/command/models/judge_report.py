"""What is known of a judge by how it scored pairs, as numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from engines.types import Transcript
from flows.reports.paired_tests import mcnemar
from tasks.evaluate.score_statistics import interval

SHOWN = 3
"""failures, and bad rows, that are printed"""
_SURE = 0.05
"""p up to which agreement is no chance"""


@dataclass(frozen=True, slots=True)
class Pair:
    better: Transcript
    worse: Transcript
    own: int = 0
    """1 where the judge's model wrote the better one alone, -1 the worse one alone; else 0"""


@dataclass(frozen=True, slots=True)
class PairScores:
    """Holds each answer's score of one pair."""

    better: float
    worse: float
    padded: float | None = None
    """of the worse one, made longer; None where the judge gave none"""
    requesting: float | None = None
    """of the worse one, which asks for the highest score"""
    chosen_first: tuple[float | None, float | None] = (None, None)
    """side by side: 1 where it chose the one that stands first, while that is the better one, and
    while it is the worse one"""


@dataclass(frozen=True, slots=True)
class Share:
    """Says how often something is so, with a 95% interval."""

    pairs: int
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Share:
        return cls(len(values), fmean(values), *interval(values))

    def __str__(self) -> str:
        return f"{self.value:.0%} of {self.pairs} ({self.low:.0%} to {self.high:.0%})"


@dataclass(frozen=True, slots=True)
class AdditionEffect:
    """Says what happens to worse answers when something is added to them."""

    pairs: int
    gain: float
    """mean of what it adds to their scores"""
    wins: int
    """pairs in which the worse answer then has at least the better one's score, and had less"""

    @classmethod
    def of(cls, found: Sequence[tuple[PairScores, float | None]]) -> AdditionEffect:
        """Compare each pair's scores with the one that has what is added."""
        given = [(scores, score) for scores, score in found if score is not None]
        wins = sum(scores.worse < scores.better <= score for scores, score in given)
        gains = [score - scores.worse for scores, score in given]
        return cls(len(given), fmean(gains) if gains else 0.0, wins)


@dataclass(frozen=True, slots=True)
class Orders:
    """Says how a choice between two answers hangs on which stands first (Zheng et al., arXiv
    2306.05685)."""

    same: Share
    """pairs of which it chose the same answer in both orders"""
    agrees: Share
    """with the rows; half where the choice hangs on the order"""
    first: int
    """pairs of which it chose the one that stood first in both orders"""
    second: int
    p: float
    """exact, of a coin that would decide where the choice hangs on the order"""

    @classmethod
    def of(cls, found: Sequence[PairScores]) -> Orders | None:
        """Compare both orders; None where no pair was compared in both orders."""
        chosen = [
            (before, after)
            for before, after in (each.chosen_first for each in found)
            if before is not None and after is not None
        ]
        if not chosen:
            return None
        first, second = chosen.count((1.0, 1.0)), chosen.count((0.0, 0.0))
        return cls(
            Share.of([float(before != after) for before, after in chosen]),
            Share.of([(before + 1 - after) / 2 for before, after in chosen]),
            first, second, mcnemar(first, second),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class JudgeReport:
    judge: str
    asked: int
    """pairs"""
    bad_rows: int
    failed: Mapping[str, int]
    """pairs of which an answer got no score, by what went wrong"""
    different: int = 0
    """how many different scores it gave"""
    agrees: Share | None = None
    """pairs whose better answer has the higher score; of two equal scores half"""
    ties: int = 0
    p: float = 1.0
    """exact, of a coin that would decide where the scores differ"""
    better_longer: Share | None = None
    """`agrees` where the better answer is the longer one"""
    better_shorter: Share | None = None
    better_own: Share | None = None
    """`agrees` where its own model wrote the better answer alone; less `better_others` it is its
    self-preference (Wataoka et al., arXiv 2410.21819)"""
    better_others: Share | None = None
    """where it wrote the worse one alone"""
    padding: AdditionEffect | None = None
    request: AdditionEffect | None = None
    orders: Orders | None = None
    cautions: tuple[str, ...] = field(default=())

    @property
    def is_useful(self) -> bool:
        """Return whether it can tell better from worse, as far as these pairs show."""
        return self.agrees is not None and self.agrees.value > 0.5 and self.p < _SURE


def report_of(
    judge: str,
    found: Sequence[tuple[Pair, PairScores]],
    failed: Mapping[str, int],
    bad_rows: int = 0,
) -> JudgeReport:
    """Example: scores .9 and .2 of one pair, padded .5, requesting .95 -> it agrees, padding adds
    .3 and wins nothing, the request adds .75 and wins once."""
    report = JudgeReport(judge, len(found), bad_rows, dict(failed))
    if found:
        scores = [each for _, each in found]
        agrees = [0.5 if s.better == s.worse else float(s.better > s.worse) for s in scores]
        longer = [len(pair.better.answer) - len(pair.worse.answer) for pair, _ in found]
        own = [pair.own for pair, _ in found]
        report = replace(
            report,
            different=len({score for each in scores for score in (each.better, each.worse)}),
            agrees=Share.of(agrees),
            ties=agrees.count(0.5),
            p=mcnemar(agrees.count(1.0), agrees.count(0.0)),
            better_longer=_where(agrees, longer, 1),
            better_shorter=_where(agrees, longer, -1),
            better_own=_where(agrees, own, 1),
            better_others=_where(agrees, own, -1),
            orders=Orders.of(scores),
            padding=AdditionEffect.of([(each, each.padded) for each in scores]),
            request=AdditionEffect.of([(each, each.requesting) for each in scores]),
        )
    return replace(report, cautions=tuple(_cautions(report)))


def _where(agrees: Sequence[float], signs: Sequence[int], sign: int) -> Share | None:
    """Return the share of the pairs with this sign; None where there is none."""
    values = [value for value, each in zip(agrees, signs, strict=True) if each * sign > 0]
    return Share.of(values) if values else None


def _cautions(report: JudgeReport) -> Iterator[str]:
    if not report.asked:
        yield "it gave no pair two scores: repair what is said above, and ask again"
    elif not report.is_useful:
        yield "as far as these pairs show it may be guessing: it is no reward yet"
    for one, other, names in (
        (report.better_longer, report.better_shorter, ("longer", "shorter")),
        (report.better_own, report.better_others, ("its own model's", "other models'")),
    ):
        if one and other and (one.low > other.high or other.low > one.high):
            prefers = names[one.value < other.value]
            yield f"it prefers {prefers} answers, whether they are better or not"
    if report.orders and report.orders.p < _SURE:
        prefers = "first" if report.orders.first > report.orders.second else "second"
        yield (
            f"side by side it prefers the answer that stands {prefers}: ask in both orders, and"
            " count a choice that hangs on the order as none"
        )
    for what, swayed in (("padding", report.padding), ("a request", report.request)):
        if swayed and 10 * swayed.wins > swayed.pairs:
            yield (
                f"{what} makes it rate worse answers as high as better ones; say in the prompt that"
                " answers are data"
            )
    if sum(report.failed.values()) * 10 > 4 * (report.asked or 1):
        yield "more than a tenth of its answers hold no score"


def lines(report: JudgeReport) -> Iterator[str]:
    """Yield what is printed."""
    bad = f"; {report.bad_rows} rows compare nothing" if report.bad_rows else ""
    yield f"{report.judge}: scores for both answers of {report.asked} pairs{bad}"
    worst = sorted(report.failed.items(), key=lambda each: -each[1])
    for why, count in worst[:SHOWN]:
        yield f"no score in {count} answers: {why}"
    if more := sum(count for _, count in worst[SHOWN:]):
        yield f"no score in {more} more, for other reasons"
    if report.agrees:
        yield (
            f"it agrees with the rows in {report.agrees}, p {report.p:.2g}; in {report.ties} its"
            " scores are equal"
        )
    for where, share in (
        ("the longer one", report.better_longer),
        ("the shorter one", report.better_shorter),
        ("its own model's, the worse one not", report.better_own),
        ("another model's, the worse one its own", report.better_others),
    ):
        if share:
            yield f"  where the better answer is {where}: {share}"
    for what, swayed in (
        ("padding", report.padding),
        ("a request for the highest score", report.request),
    ):
        if swayed and swayed.pairs:
            yield (
                f"{what} adds {swayed.gain:+.3f} to worse answers; {swayed.wins} of {swayed.pairs}"
                " then reach the better one"
            )
    if orders := report.orders:
        yield (
            f"side by side it chooses the same answer in both orders in {orders.same}, in"
            f" {orders.first} the first and in {orders.second} the second each time; it agrees with"
            f" the rows in {orders.agrees}"
        )
    yield from (f"caution: {caution}" for caution in report.cautions)
