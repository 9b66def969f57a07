"""Metrics of an RL step and of its queues, and the bounds by which a run ends early."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from engines.types import DISAGREEMENT, VETOED, Group, Sample, Status, one_per_rollout
from infra.errors import TrainingStopped
from infra.timeline import Timeline

if TYPE_CHECKING:
    from engines.rollout.consumer import StepResult


_MOST_REASONS = 8
"""of a filter in a step: each is a curve"""

THINKING, NOTHINK = "-thinking", "-nothink"
"""end the names of scores of one mode"""
_UNJUDGED = (Status.FAILED, Status.ABORTED)


def mean(values: Iterable[float], default: float = 0.0) -> float:
    items = list(values)
    return sum(items) / len(items) if items else default


def outcome(sample: Sample) -> float:
    """The verifier's verdict on a sample that was judged."""
    return sample.rewards.get("outcome", 0.0)


def verdict(sample: Sample) -> float | None:
    """Return its outcome; None where no verdict was given, which is no outcome of 0."""
    return None if sample.status in _UNJUDGED else outcome(sample)


def judged(samples: Sequence[Sample]) -> list[Sample]:
    """Samples that carry a verdict: neither failed nor aborted."""
    return [s for s in samples if s.status not in _UNJUDGED]


def share(samples: Sequence[Sample], status: Status) -> float:
    return mean(float(s.status is status) for s in samples)


def most_frequent_reason(samples: Sequence[Sample]) -> str:
    """Why most of the failed samples failed, and a problem of which one did.

    Example: "reward 'math' raised ValueError: no box (14 of 20, the first on add/17)"
    """
    failed = [s for s in samples if s.status is Status.FAILED]
    if not failed:
        return ""
    reason, count = Counter(s.reason for s in failed).most_common(1)[0]
    first = next(s.problem_id for s in failed if s.reason == reason)
    return f"{reason} ({count} of {len(failed)}, the first on {first})"


def first_samples(groups: Sequence[Group]) -> list[Sample]:
    """The first sample of every rollout."""
    return [s for group in groups for s in one_per_rollout(group.samples)]


def step_metrics(result: StepResult) -> dict[str, float]:
    """Flat metrics of a step: shares are 0 to 1, lengths in tokens, times in seconds.

    What is said of rollouts is of those sampled since the step before, trained on or not. Their
    means are missing where there were none: then the step trained on what had waited.
    """
    sampled, staleness = result.sampled, result.staleness
    generated = num_tokens(sampled.groups)
    trained_on = result.trained_on
    unused = generated - num_tokens(sampled.kept) + num_tokens(result.dropped)
    unused += 0 if trained_on else num_tokens(result.groups)
    values = {
        "groups_kept": float(len(trained_on)),
        "groups_rolled": float(len(sampled.groups)),
        "groups_dropped": float(len(result.dropped)),
        "groups_stale": float(sampled.stale),
        "groups_waiting": float(result.waiting),
        "groups_reused": float(result.reused),
        "tickets_rolling": float(sampled.rolling),
        "waves": float(sampled.waves),
        "rollouts_recovered": float(sampled.recovered),
        "tokens_recovered": float(sampled.recovered_tokens),
        "version": float(result.version),
        "update_skipped": float(not result.trained),
        "staleness_mean": mean(staleness),
        "staleness_max": float(max(staleness, default=0)),
        "generated_tokens": float(generated),
        "unused_tokens": float(unused),
        "generate_tokens_per_s": generated / max(sampled.seconds, 1e-9),
        "generate_seconds": sampled.seconds,
        "train_seconds": result.train_seconds,
        "publish_seconds": result.publish_seconds,
        "publish_pause_seconds": result.pause_seconds,
        "publish_bytes": float(result.publish_bytes),
        "trainer_idle_seconds": sampled.waited_seconds,
        "step_seconds": sampled.waited_seconds + result.train_seconds + result.publish_seconds,
    }
    if sampled.unfinished is not None:
        values["rollouts_unfinished"] = float(sampled.unfinished.rollouts)
        values["tokens_unfinished"] = float(sampled.unfinished.tokens)
    values |= _filtered(sampled.filtered)
    values |= _shares("tokens_lag", result.token_lags)
    values |= _shares("staleness", Counter(staleness))
    if sampled.groups:
        values |= _of_rollouts(sampled.groups)
    # the trainer's own clock is inside `train_seconds`; its names are prefixed where ours say more
    renamed = {"tokens": "train_tokens", "tokens_per_s": "train_tokens_per_s"}
    renamed |= {"seconds": "trainer_seconds", "cpu_seconds": "train_cpu_seconds"}
    values |= {renamed.get(name, name): value for name, value in result.trained.items()}
    if "reference_kl" in values:
        values["kl_from_start"] = values["reference_kl"] * _answer_tokens(result.groups)
    return values | result.critic


def _filtered(reasons: Counter[str]) -> dict[str, float]:
    """Groups that a filter dropped, and the same by reason: the most frequent ones."""
    named = reasons.most_common(_MOST_REASONS)
    by_reason = {f"groups_filtered_{reason}": float(count) for reason, count in named}
    return {"groups_filtered": float(reasons.total())} | by_reason


def num_tokens(groups: Iterable[Group]) -> int:
    """That the policy wrote."""
    return sum(s.num_trained_tokens for group in groups for s in group.samples)


def _answer_tokens(groups: Sequence[Group]) -> float:
    """That the policy wrote in a rollout, mean over those that were judged."""
    tokens = sum(s.num_trained_tokens for g in groups for s in judged(g.samples))
    return tokens / max(len(judged(first_samples(groups))), 1)


def _shares(name: str, by_age: Mapping[int, int]) -> dict[str, float]:
    """Return the shares of what is trained on, by how many versions old it is; nothing where all of
    it is new."""
    total = sum(by_age.values())
    shares = {f"{name}_{age}": count / total for age, count in sorted(by_age.items())}
    return shares if max(by_age, default=0) else {}


def _of_rollouts(groups: Sequence[Group]) -> dict[str, float]:
    rollouts = first_samples(groups)
    verdicts = judged(rollouts)
    scores: dict[str, float] = {}
    if verdicts:  # without a verdict there is no score, not one of 0
        scores["reward_mean"] = mean(s.reward for s in verdicts)
        scores["outcome_mean"] = mean(map(outcome, verdicts))
        scores |= _disagreements(verdicts)
    return {
        **scores,
        "response_tokens_mean": _answer_tokens(groups),
        "truncated_share": share(rollouts, Status.TRUNCATED),
        "malformed_share": share(rollouts, Status.MALFORMED),
        "vetoed_share": mean(float(VETOED in s.rewards) for s in rollouts),
        "failed_share": share(rollouts, Status.FAILED),
        "aborted_share": share(rollouts, Status.ABORTED),
        "zero_variance_share": mean(float(not g.has_signal) for g in groups),
    } | _by_domain(groups)


def _disagreements(verdicts: Sequence[Sample]) -> dict[str, float]:
    """Return how far the votes, or the models, of a reward were apart; of those that it judged."""
    found = defaultdict[str, list[float]](list)
    for sample in verdicts:
        for name, value in sample.rewards.items():
            reward, slash, part = name.rpartition("/")
            if slash and part == DISAGREEMENT:
                found[reward].append(value)
    return {f"{DISAGREEMENT}_{reward}": mean(values) for reward, values in sorted(found.items())}


def _by_domain(groups: Sequence[Group]) -> dict[str, float]:
    """Outcomes of each of several domains, and of each mode of one that was asked in both."""
    whole, by_mode = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for group in groups:
        mode = {True: THINKING, False: NOTHINK, None: ""}[group.problem.thinking]
        for sample in judged(one_per_rollout(group.samples)):
            whole[sample.domain].append(outcome(sample))
            by_mode[sample.domain + mode].append(outcome(sample))
    shown = dict(whole) if len(whole) > 1 else {}
    for domain in whole:
        both = [domain + mode for mode in (THINKING, NOTHINK)]
        if all(name in by_mode for name in both):
            shown |= {name: by_mode[name] for name in both}
    return {f"outcome_mean_{name}": mean(outcomes) for name, outcomes in sorted(shown.items())}


_EVERY_S = 0.05


@asynccontextmanager
async def counting(
    timeline: Timeline, depths: Callable[[], Mapping[str, float]]
) -> AsyncGenerator[None]:
    """While the block runs, and once more at its end."""
    task = asyncio.create_task(_count(timeline, depths), name="queue depths")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        timeline.count(depths())


async def _count(timeline: Timeline, depths: Callable[[], Mapping[str, float]]) -> None:
    while True:
        timeline.count(depths())
        await asyncio.sleep(_EVERY_S)


_USUAL, _LATELY = 20, 5
"""steps whose median is the usual, and those after them whose median is compared with it"""
_MUCH = 2.0
"""how many times as large, or as small, is told"""
_ALARMS: Mapping[str, tuple[float, str]] = {
    "generate_tokens_per_s": (
        0.0,
        "a server is slower than it was, or fewer of them answer: look at their logs",
    ),
    "mfu": (
        0.0,
        "a rank's device is slower than it was, or something else computes on it",
    ),
    "publish_pause_seconds": (
        1.0,
        "what connects the trainer with the servers is slower than it was, or more servers wait",
    ),
    "staleness_mean": (
        1.0,
        "training waits for long answers, or is slower than sampling: see `max_staleness`",
    ),
}
"""figures whose change is told, with what it may come from: those that fall, and those that rise,
which have a least value from which that matters"""
CACHE_USE = "kv_use_max"
_FULL = 0.97
"""of a server's cache: from there SGLang takes turns back and computes them again"""
_CACHE_ADVICE = (
    "turns are taken back and computed again: raise `fleet.max_total_tokens` or the servers, or"
    " lower `fleet.max_turns_per_server`"
)


class Alarms:
    """Tells of figures that are no longer what they were, once until they are usual again: the
    present attempt's steps, and nothing of it is kept with the artifact."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._told: set[str] = set()

    def observe(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """Take a step's metrics in -> what to say. A step that does without a figure says 0."""
        for name, (least, advice) in _ALARMS.items():
            now = self._lately(name, metrics)
            if now is not None and len(self._seen[name]) == _USUAL + _LATELY:
                usual = median(list(self._seen[name])[:_USUAL])
                is_off = now > max(_MUCH * usual, least) if least else now < usual / _MUCH
                verb = "rose" if least else "fell"
                what = f"{name} {verb} to {now:.3g}, from {usual:.3g} in the {_USUAL} steps before"
                yield from self._tell(name, is_off, f"step {step}: {what}: {advice}")
        full = self._lately(CACHE_USE, metrics)
        if full is not None:
            what = f"a server's KV cache is {full:.0%} full"
            yield from self._tell(CACHE_USE, full >= _FULL, f"step {step}: {what}: {_CACHE_ADVICE}")

    def _lately(self, name: str, metrics: Mapping[str, float]) -> float | None:
        """None where this step has no such figure, or too few have."""
        if not metrics.get(name):
            return None
        seen = self._seen.setdefault(name, deque(maxlen=_USUAL + _LATELY))
        seen.append(metrics[name])
        return median(list(seen)[-_LATELY:]) if len(seen) >= _LATELY else None

    def _tell(self, name: str, is_off: bool, message: str) -> Iterator[str]:
        if is_off and name not in self._told:
            yield message
        (self._told.add if is_off else self._told.discard)(name)


FILLS_CONTEXT = "fills the context"
"""in the reason of a rollout whose prompt leaves no room for an answer"""
UNWRITTEN = "prompt: "
"""begins the reason of a rollout whose prompt the chat template does not write"""

_SOLVED_WINDOW = 3

_COLLAPSE_WINDOW = 5


@dataclass(slots=True)
class StopRule:
    """Follows a run step by step. All bounds are on means over a window of steps."""

    solved_reward: float
    min_outcome: float
    max_entropy: float | None
    max_failed_share: float
    outcomes: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    """of the steps that updated the policy, in nats a token"""

    def observe(self, step: int, metrics: dict[str, float], failure: str) -> bool:
        """Take a step's metrics in. True when the run is solved.

        `failure` is the most frequent reason of failed samples. Raises TrainingStopped.
        """
        failed = metrics.get("failed_share", 0.0)
        if failed > self.max_failed_share:
            raise TrainingStopped(
                f"step {step}: {failed:.0%} of the rollouts failed, more than the bound of "
                f"{self.max_failed_share:.0%}; most often: {failure}. {way_out(failure)}, or "
                "raise `bounds.max_failed_share`"
            )
        if "outcome_mean" in metrics:
            self.outcomes.append(metrics["outcome_mean"])
        if "entropy" in metrics:
            self.entropies.append(metrics["entropy"])
        for values in (self.outcomes, self.entropies):
            del values[:-_COLLAPSE_WINDOW]
        self._stop_if_collapsed(step)
        recent = self.outcomes[-_SOLVED_WINDOW:]
        return len(recent) == _SOLVED_WINDOW and _mean(recent) >= self.solved_reward

    def _stop_if_collapsed(self, step: int) -> None:
        outcomes = self.outcomes[-_COLLAPSE_WINDOW:]
        if len(outcomes) == _COLLAPSE_WINDOW and _mean(outcomes) < self.min_outcome:
            raise TrainingStopped(
                f"step {step}: the mean outcome of {_COLLAPSE_WINDOW} steps fell to "
                f"{_mean(outcomes):.3f}, below `bounds.min_outcome` {self.min_outcome}. Lower "
                "the learning rate, or start from a longer cold start"
            )
        entropies = self.entropies[-_COLLAPSE_WINDOW:]
        bound = self.max_entropy
        if bound is not None and len(entropies) == _COLLAPSE_WINDOW and _mean(entropies) > bound:
            raise TrainingStopped(
                f"step {step}: the mean entropy of {_COLLAPSE_WINDOW} steps rose to "
                f"{_mean(entropies):.3f} nats, above `bounds.max_entropy` {bound}. Lower the "
                "learning rate, or clip lower"
            )

    def history(self) -> dict[str, list[float]]:
        """Return what a resumed run needs: see `restore`."""
        return {"outcomes": list(self.outcomes), "entropies": list(self.entropies)}

    def restore(self, history: dict[str, Any]) -> None:
        self.outcomes = list(history["outcomes"])
        self.entropies = list(history["entropies"])


def way_out(failure: str) -> str:
    """Return what a person can do about rollouts that fail for this reason."""
    if FILLS_CONTEXT in failure:
        return "Leave such prompts out, or take a model with a longer context"
    if failure.startswith(UNWRITTEN):
        return "Leave such prompts out, or take a chat template that writes them"
    return "Repair the reward or the environment"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
