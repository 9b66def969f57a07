"""What the rewards made of a stage's rollouts, domain by domain, and what must be said of it.

A failed verdict is no score: nothing is trained on it, and a stage whose rewards give no verdict at
all ends with their reason. What only partly went wrong becomes a warning at the end of the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from engines.algorithms.parts import Need
from engines.rollout.metrics import FILLS_CONTEXT, UNWRITTEN, first_samples, outcome, way_out
from engines.types import Group, Sample, Status
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning

FEWEST = 8
"""rollouts, or groups, from which a rule about them holds"""
_FEWEST_ROLLOUTS, _FEWEST_GROUPS = 64, 32
"""from which they are many"""
_MANY = 0.05
"""share of failed verdicts from which they are a warning"""
_MOST, _MOST_OF_FEW = 0.5, 0.75
"""share of truncated, malformed, aborted or useless rollouts above which they are a warning; a
young policy's few steps come above the first by chance"""
_REASONS = 256
"""different ones that are counted"""
SOLVED = 0.9
"""mean outcome from which equal rewards are no fault: the policy solves the problems"""
_ENDS = {
    Status.TRUNCATED: "were cut off at their limit of tokens, turns or context; raise the domain's"
    " `max_new_tokens` or `max_turns`",
    Status.MALFORMED: "broke the format of calls or thoughts; give the model a longer cold start,"
    " or correct the chat template",
    Status.ABORTED: "were aborted by the engine; look at the logs of its servers",
}


@dataclass(slots=True)
class Judged:
    """Rollouts of one domain by how they ended; a reward is asked of those that are complete."""

    ended: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    """why verdicts failed"""
    low: float | None = None
    high: float | None = None
    """the least and the greatest reward"""
    outcomes: float = 0.0
    """their sum"""
    groups: int = 0
    flat: int = 0
    """of the groups of several rollouts, those whose rewards are equal though the problem is not
    solved"""

    @property
    def rollouts(self) -> int:
        return self.ended.total()

    @property
    def failed(self) -> int:
        return self.ended[Status.FAILED]

    @property
    def asked(self) -> int:
        """Return how often a verdict was asked for and not known beforehand."""
        return self.ended[Status.COMPLETED] + self.failed

    @property
    def has_no_verdict(self) -> bool:
        return 0 < self.failed == self.asked

    @property
    def scored(self) -> int:
        return self.rollouts - self.failed - self.ended[Status.ABORTED]

    @property
    def mean_outcome(self) -> float | None:
        return self.outcomes / self.scored if self.scored else None

    @property
    def reason(self) -> str:
        """The most frequent one, with its count."""
        why, count = self.reasons.most_common(1)[0]
        return f"{why} ({count} of {self.failed})"

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        made = cls(**state)
        made.ended, made.reasons = Counter(state["ended"]), Counter(state["reasons"])
        return made

    def add(self, sample: Sample) -> None:
        self.ended[sample.status] += 1
        if sample.status is Status.FAILED:
            if sample.reason in self.reasons or len(self.reasons) < _REASONS:
                self.reasons[sample.reason] += 1
        elif sample.status is not Status.ABORTED:
            self.low = sample.reward if self.low is None else min(self.low, sample.reward)
            self.high = sample.reward if self.high is None else max(self.high, sample.reward)
            self.outcomes += outcome(sample)

    def add_group(self, group: Group) -> None:
        samples = first_samples([group])
        verdicts = [s for s in samples if s.status not in (Status.FAILED, Status.ABORTED)]
        solved = bool(verdicts) and sum(map(outcome, verdicts)) >= SOLVED * len(verdicts)
        self.groups += 1
        self.flat += len(samples) > 1 and not group.has_signal and not solved
        for sample in samples:
            self.add(sample)


class Verdicts:
    """Follows a stage; saved with its checkpoints."""

    def __init__(self) -> None:
        self._domains: dict[str, Judged] = {}

    def observe(self, groups: Sequence[Group]) -> None:
        """Take in what was sampled."""
        for group in groups:
            if group.samples:
                name = group.samples[0].domain
                self._domains.setdefault(name, Judged()).add_group(group)

    def require_some(self, step: int, most_failed: float) -> None:
        """Raises TrainingStopped where a domain's reward failed every time that it was asked, and
        where more than `most_failed` of all verdicts did."""
        if most_failed >= 1.0:
            return
        for name, judged in self._domains.items():
            if judged.has_no_verdict and judged.failed >= FEWEST:
                raise TrainingStopped(f"step {step}: {no_verdict(name, judged)}")
        failed = sum(judged.failed for judged in self._domains.values())
        asked = sum(judged.asked for judged in self._domains.values())
        if asked >= FEWEST and failed > most_failed * asked:
            worst = max(self._domains.values(), key=lambda judged: judged.failed)
            advice = way_out(worst.reason)
            raise TrainingStopped(
                f"step {step}: {failed} of the {asked} verdicts so far failed, which is more than"
                f" the bound of {most_failed:.0%}; most often: {worst.reason}. {advice}, or raise"
                " `bounds.max_failed_share`"
            )

    @property
    def is_solved(self) -> bool:
        means = [judged.mean_outcome for judged in self._domains.values()]
        return bool(means) and all(mean is not None and mean >= SOLVED for mean in means)

    def nothing_learned(self, filtered: Mapping[str, int]) -> str:
        """Why no step could update the policy; `filtered`: groups that were dropped, by reason."""
        for name, judged in self._domains.items():
            if judged.has_no_verdict:
                return no_verdict(name, judged)
        whole = Counter[str]()
        for judged in self._domains.values():
            whole.update(judged.ended)
        for status, said in _ENDS.items():
            if whole and whole[status] == whole.total():
                return f"all {whole.total()} rollouts {said}"
        if not filtered:
            return "too few groups of the steps could be trained on"
        reason, count = max(filtered.items(), key=lambda item: item[1])
        if reason == "equal_rewards":
            return f"the rewards within each of {count} groups were equal{self._all_equal()}"
        total = sum(filtered.values())
        return f"{count} of {total} groups were dropped by the filter as `{reason}`"

    def _all_equal(self) -> str:
        lows = [j.low for j in self._domains.values() if j.low is not None]
        highs = [j.high for j in self._domains.values() if j.high is not None]
        ended = Counter[str]()
        for judged in self._domains.values():
            ended.update(judged.ended)
        same = f", every reward was {lows[0]:g}" if lows and min(lows) == max(highs) else ""
        counts = ", ".join(f"{count} {status}" for status, count in ended.most_common())
        return f"{same}; rollouts ended: {counts}"

    def warnings(
        self, needs: Collection[Need], domains: Collection[str] = ()
    ) -> Iterator[StageWarning]:
        """`needs`: of the advantage; `domains`: those of the stage."""
        for name in domains:
            if self._domains and name not in self._domains:
                yield _never_drawn(name)
        for name, judged in self._domains.items():
            yield from _ends(name, judged)
            if "teachers" not in needs:  # these do not learn from rewards
                yield from _rewards(name, judged, compares="spread" in needs)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes."""
        return {
            name: {f.name: getattr(judged, f.name) for f in fields(judged)}
            for name, judged in self._domains.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._domains = {name: Judged.of_state(of) for name, of in state.items()}


def _are_most(count: int, total: int, many: int) -> bool:
    return total >= FEWEST and count > (_MOST if total >= many else _MOST_OF_FEW) * total


def no_verdict(domain: str, judged: Judged) -> str:
    """Return a sentence on a reward that never gave one."""
    return none_judged(domain, judged.failed, judged.reason)


def none_judged(domain: str, failed: int, reason: str, so: str = "") -> str:
    """Say that none of so many rollouts has a verdict, why, and what follows from that."""
    advice = way_out(reason)
    if FILLS_CONTEXT in reason or reason.startswith(UNWRITTEN):
        return f"none of the {failed} rollouts of {domain} could begin{so}: {reason}. {advice}"
    return (
        f"the rewards of {domain} failed on each of the {failed} rollouts that they were asked"
        f" about{so}: {reason}. {advice}, or give the rows what it reads; `tributary check` tries"
        " it"
    )


def _ends(name: str, judged: Judged) -> Iterator[StageWarning]:
    total, failed = judged.rollouts, judged.failed
    if failed and (judged.has_no_verdict or failed > _MANY * judged.asked):
        yield StageWarning(
            what=f"{failed} of {judged.asked} verdicts on {name} failed; no failed one is trained"
            " on",
            cause=judged.reason,
            advice=way_out(judged.reason).lower(),
            figures={"failed": failed, "asked": judged.asked},
        )
    for status in _ENDS:
        count = judged.ended[status]
        if _are_most(count, total, _FEWEST_ROLLOUTS) or 0 < count == total:
            yield StageWarning(
                what=f"{count} of {total} rollouts of {name} ended {status}",
                cause=_ENDS[status].partition("; ")[0],
                advice=_ENDS[status].partition("; ")[2],
                figures={str(status): count, "rollouts": total},
            )


def _rewards(name: str, judged: Judged, *, compares: bool) -> Iterator[StageWarning]:
    """`compares`: whether equal rewards in a group teach nothing."""
    if judged.scored >= FEWEST and judged.low == judged.high and judged.low is not None:
        yield StageWarning(
            what=f"the reward of all {judged.scored} rollouts of {name} was {judged.low:g}",
            cause="it tells no answer from another",
            advice="look at the samples, and try the reward with `tributary test-hook`",
            figures={"rollouts": judged.scored, "reward": judged.low},
        )
    elif compares and _are_most(judged.flat, judged.groups, _FEWEST_GROUPS):
        yield StageWarning(
            what=f"{judged.flat} of {judged.groups} groups of {name} taught nothing",
            cause="all rollouts of such a group earned the same, and did not solve the problem",
            advice="draw easier problems, more rollouts of each, or give a longer cold start",
            figures={"groups": judged.groups, "flat": judged.flat},
        )
    elif not compares and FEWEST <= judged.groups == judged.flat:
        yield StageWarning(
            what=f"all rollouts of a problem earned the same, in each of {judged.groups} groups of"
            f" {name}",
            cause="its rewards may look at the problem, and not at the answer",
            advice="look at the samples, and try the rewards with `tributary test-hook`",
            figures={"groups": judged.groups},
        )
    elif judged.scored >= FEWEST and not judged.outcomes:
        yield StageWarning(
            what=f"none of {judged.scored} rollouts of {name} had an outcome above 0",
            cause="what was learned is from its other rewards alone",
            advice="look at the samples: is an answer right that the outcome calls wrong? Draw"
            " easier problems, or give a longer cold start",
            figures={"rollouts": judged.scored},
        )


def _never_drawn(name: str) -> StageWarning:
    return StageWarning(
        what=f"no problem of {name} was rolled out",
        cause="the stage has so few steps, or its `data_source` draws those of other domains",
        advice="raise `steps` or `problems_per_step`, or change the weights of `data_source`",
    )


def without_scores(name: str, evaluations: int) -> StageWarning:
    """Say that a policy was never scored on held-out problems, though that was asked for."""
    return StageWarning(
        what=f"none of {evaluations} evaluations of {name} on held-out problems has a score",
        cause="no rollout got a verdict in time",
        advice="raise `evaluate.timeout_s`, or try the outcome with `tributary check`",
        figures={"evaluations": evaluations},
    )
