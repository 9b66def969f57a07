"""`screen`: how often a model solves each problem, and only those of the wanted difficulty go on.

Every problem gets the first answers. One of which none was right gets as many again, and so on,
until one is right or it has had the most: so most problems are told apart with few answers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.metrics import most_frequent_reason, verdict, way_out
from engines.rollout.records.dataset import AdmittedProblem, write_admitted
from engines.rollout.records.gallery import Gallery
from engines.rollout.roller import RollsGroups
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import Group, Problem, Sample, Split, Status
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from tasks.evaluate.score_statistics import interval
from tasks.resources import once_each, unless_stopped
from tasks.sampling import open_model_sampling
from tasks.screen.spec import PASS_RATES_FILE, SCREEN_FILE, Pool, ScreenSettings, ScreenSpec
from tasks.stage import Reporter, StageContext

_SHOWN = 32
"""problems of a domain's split of which rollouts are kept to browse"""
Found = Pool | Literal["unsolved", "unjudged"]
"""also `unsolved`: none of the first answers was right, and no more were drawn; `unjudged`: of
fewer than half of the answers there is a verdict, so nothing is said of the problem"""


@dataclass(slots=True)
class Tally:
    """Answers to one problem. Those without a verdict count nowhere."""

    problem: Problem
    first_judged: int = 0
    first_right: int = 0
    judged: int = 0
    right: int = 0
    failed: int = 0

    def count(self, outcomes: Sequence[float | None], right_from: float) -> None:
        """One round's outcomes; None: no verdict. The first round with a verdict has the first
        answers: where rewards failed on all before it, nothing is known of these."""
        verdicts = [outcome for outcome in outcomes if outcome is not None]
        right = sum(outcome >= right_from for outcome in verdicts)
        if not self.judged:
            self.first_judged, self.first_right = len(verdicts), right
        self.judged += len(verdicts)
        self.right += right
        self.failed += len(outcomes) - len(verdicts)

    def pool(self, *, goes_on: bool) -> Found:
        if not self.judged or self.judged < self.failed:
            return "unjudged"
        if self.first_right:
            return "solved" if self.first_right == self.first_judged else "moderate"
        if not goes_on:
            return "unsolved"
        return "hard" if self.right else "never"


@dataclass(frozen=True, slots=True)
class Screened:
    """The problems of one split of a domain, in the order of their drawing."""

    domain: str
    split: Split
    tallies: Sequence[Tally]
    pools: Sequence[Found]
    shown: Sequence[Group]
    tokens: int
    reason: str
    """why most of the answers without a verdict have none"""

    @property
    def name(self) -> str:
        return f"{self.domain}, {self.split}"

    def kept(self, pools: Sequence[Pool]) -> list[AdmittedProblem]:
        return [
            AdmittedProblem(self.domain, self.split, tally.problem, pool)
            for tally, pool in zip(self.tallies, self.pools, strict=True)
            if pool in pools
        ]


async def run(spec: ScreenSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out`. Raises EngineError, TrainingStopped where no problem of a domain's split
    is kept, Stopped."""
    screened = list[Screened]()
    async with AsyncExitStack() as stack:
        parts = await open_model_sampling(
            stack, context, spec.settings.fleet, spec.domains, spec.seed
        )
        began = time.monotonic()
        for domain in parts.domains:
            for split, count in spec.drawn.items():
                drawn = draw_problems(domain.curriculum, split, count, spec.seed)
                problems = once_each(context, f"{domain.name}, {split}", drawn)
                work = screen(
                    spec.settings,
                    context.reporter,
                    parts.roller,
                    domain,
                    split,
                    problems,
                    parts.kept,
                )
                screened.append(await unless_stopped(context, work))
        worked = time.monotonic() - began
    gallery = Gallery(parts.chat)
    for each in screened:
        gallery.add_step(each.domain, each.shown, _SHOWN)
    gallery.write(context.out)
    _write(spec, context.out, screened)
    _conclude(spec, context, screened)
    return {**_summary(spec, screened), "work_seconds": worked}


async def screen(
    settings: ScreenSettings,
    reporter: Reporter,
    roller: RollsGroups,
    domain: LiveDomain,
    split: Split,
    problems: Sequence[Problem],
    kept: KeptRollouts,
) -> Screened:
    """Draw answers to the problems of one split until each one's pool is known."""
    tallies = [Tally(problem) for problem in problems]
    shown, failed, tokens = list[Group](), list[Sample](), 0
    for number, answers in enumerate(settings.rounds):
        tried = [tally for tally in tallies if not tally.right]
        rolled = await sample_rollouts(
            roller,
            domain,
            [tally.problem for tally in tried],
            samples=answers,
            temperature=settings.temperature,
            kept=kept,
            label=f"{domain.name}/{split}/{number}",
            draw=number,
        )
        for tally, rollouts in zip(tried, rolled, strict=True):
            firsts = [rollout.samples[0] for rollout in rollouts]
            outcomes = [verdict(sample) for sample in firsts]
            tally.count(outcomes, settings.right)
            samples = [sample for rollout in rollouts for sample in rollout.samples]
            tokens += sum(sample.num_trained_tokens for sample in samples)
            failed += [sample for sample in firsts if sample.status is Status.FAILED]
            if number == 0 and len(shown) < _SHOWN:
                shown.append(Group(tally.problem, samples))
        await kept.journal.flush()
        reporter.progress(
            sum(tally.right > 0 for tally in tallies),
            len(tallies),
            f"{domain.name}, {split}: {sum(settings.rounds[: number + 1])} answers to a problem",
        )
    pools: list[Found] = [tally.pool(goes_on=settings.goes_on) for tally in tallies]
    return Screened(domain.name, split, tallies, pools, shown, tokens, most_frequent_reason(failed))


def _write(spec: ScreenSpec, out: Path, screened: Sequence[Screened]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_admitted(out, [row for each in screened for row in each.kept(spec.settings.keep)])
    pq.write_table(
        pa.Table.from_pylist([row for each in screened for row in _rates(each)]),
        out / PASS_RATES_FILE,
    )
    counts = {each.name: _counts(spec, each) for each in screened}
    (out / SCREEN_FILE).write_text(json.dumps(counts, indent=1))


def _rates(each: Screened) -> list[dict[str, object]]:
    """Return a row for each problem. The pass rate and its 95% interval are of the first answers:
    those of later rounds end with the first that is right, so their share says too much."""
    rows: list[dict[str, object]] = []
    for tally, pool in zip(each.tallies, each.pools, strict=True):
        first = [1.0] * tally.first_right + [0.0] * (tally.first_judged - tally.first_right)
        low, high = interval(first)
        rows.append(
            {
                "domain": each.domain,
                "split": each.split,
                "problem_id": tally.problem.id,
                "pool": pool,
                "pass_rate": tally.first_right / tally.first_judged if first else None,
                "low": low,
                "high": high,
                "first_judged": tally.first_judged,
                "first_right": tally.first_right,
                "judged": tally.judged,
                "right": tally.right,
                "failed": tally.failed,
            }
        )
    return rows


def _counts(spec: ScreenSpec, each: Screened) -> dict[str, int]:
    return {
        "tried": len(each.tallies),
        "kept": len(each.kept(spec.settings.keep)),
        **Counter(each.pools),
    }


def _conclude(spec: ScreenSpec, context: StageContext, screened: Sequence[Screened]) -> None:
    """Says what is left out. Raises TrainingStopped where nothing is left to draw from."""
    for each in screened:
        counts = Counter(each.pools)
        said = ", ".join(f"{count} {pool}" for pool, count in counts.items())
        if not each.kept(spec.settings.keep):
            because = f" ({each.reason})" if counts["unjudged"] and each.reason else ""
            raise TrainingStopped(
                f"screen: none of {len(each.tallies)} problems of {each.name} is"
                f" {' or '.join(spec.settings.keep)}: {said}{because}. Try more problems, other"
                " ones, or `keep` another pool"
            )
        if failed := sum(tally.failed for tally in each.tallies):
            answers = failed + sum(tally.judged for tally in each.tallies)
            lost = f"; problems left out: {unknown}" if (unknown := counts["unjudged"]) else ""
            context.reporter.keep_warning(
                StageWarning(
                    what=f"{failed} of {answers} answers of {each.name} got no verdict and count"
                    f" nowhere{lost}",
                    cause=each.reason,
                    advice=way_out(each.reason).lower(),
                    figures={"failed": failed, "answers": answers, "left_out": unknown},
                )
            )


def _summary(spec: ScreenSpec, screened: Sequence[Screened]) -> dict[str, float]:
    tallies = [tally for each in screened for tally in each.tallies]
    answers = sum(tally.judged + tally.failed for tally in tallies)
    pools = Counter(pool for each in screened for pool in each.pools)
    return {
        "tried": float(len(tallies)),
        "kept": float(sum(len(each.kept(spec.settings.keep)) for each in screened)),
        **{f"pool/{pool}": float(count) for pool, count in sorted(pools.items())},
        "rollouts": float(answers),
        "drawn_share": answers / (len(tallies) * sum(spec.settings.rounds)),
        "generated_tokens": float(sum(each.tokens for each in screened)),
    }
