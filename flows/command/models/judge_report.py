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


@dataclass(frozen=True, slots=True)
class Pair:
    better: Transcript
    worse: Transcript


@dataclass(frozen=True, slots=True)
class PairScores:
    """Each answer's score of one pair."""

    better: float
    worse: float
    padded: float | None = None
    """of the worse one, made longer; None where the judge gave none"""
    requesting: float | None = None
    """of the worse one, which asks for the highest score"""


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
        """Of each pair its scores, and the one with what is added."""
        given = [(scores, score) for scores, score in found if score is not None]
        wins = sum(scores.worse < scores.better <= score for scores, score in given)
        gains = [score - scores.worse for scores, score in given]
        return cls(len(given), fmean(gains) if gains else 0.0, wins)


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
    padding: AdditionEffect | None = None
    request: AdditionEffect | None = None
    cautions: tuple[str, ...] = field(default=())

    @property
    def is_useful(self) -> bool:
        """Whether it can tell better from worse, as far as these pairs show."""
        return self.agrees is not None and self.agrees.value > 0.5 and self.p < _SURE


_SURE = 0.05
"""p up to which agreement is no chance"""


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
        agrees = [_agrees(each) for each in scores]
        longer = [len(pair.better.answer) - len(pair.worse.answer) for pair, _ in found]
        by_length = {
            sign: [value for value, more in zip(agrees, longer, strict=True) if more * sign > 0]
            for sign in (1, -1)
        }
        report = replace(
            report,
            different=len({score for each in scores for score in (each.better, each.worse)}),
            agrees=Share.of(agrees),
            ties=agrees.count(0.5),
            p=mcnemar(agrees.count(1.0), agrees.count(0.0)),
            better_longer=Share.of(by_length[1]) if by_length[1] else None,
            better_shorter=Share.of(by_length[-1]) if by_length[-1] else None,
            padding=AdditionEffect.of([(each, each.padded) for each in scores]),
            request=AdditionEffect.of([(each, each.requesting) for each in scores]),
        )
    return replace(report, cautions=tuple(_cautions(report)))


def _agrees(scores: PairScores) -> float:
    return 0.5 if scores.better == scores.worse else float(scores.better > scores.worse)


def _cautions(report: JudgeReport) -> Iterator[str]:
    if not report.asked:
        yield "it gave no pair two scores: repair what is said above, and ask again"
    elif not report.is_useful:
        yield "as far as these pairs show it may be guessing: it is no reward yet"
    longer, shorter = report.better_longer, report.better_shorter
    if longer and shorter and (longer.low > shorter.high or shorter.low > longer.high):
        prefers = "longer" if longer.value > shorter.value else "shorter"
        yield f"it prefers {prefers} answers, whether they are better or not"
    for what, swayed in (("padding", report.padding), ("a request", report.request)):
        if swayed and 10 * swayed.wins > swayed.pairs:
            yield (
                f"{what} makes it rate worse answers as high as better ones; say in the prompt that"
                " answers are data"
            )
    if sum(report.failed.values()) * 10 > 4 * (report.asked or 1):
        yield "more than a tenth of its answers hold no score"


def lines(report: JudgeReport) -> Iterator[str]:
    """What is printed."""
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
    for where, share in (("longer", report.better_longer), ("shorter", report.better_shorter)):
        if share:
            yield f"  where the better answer is the {where} one: {share}"
    for what, swayed in (
        ("padding", report.padding),
        ("a request for the highest score", report.request),
    ):
        if swayed and swayed.pairs:
            yield (
                f"{what} adds {swayed.gain:+.3f} to worse answers; {swayed.wins} of {swayed.pairs}"
                " then reach the better one"
            )
    yield from (f"caution: {caution}" for caution in report.cautions)
