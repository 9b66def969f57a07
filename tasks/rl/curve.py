"""The curve of a policy that trains: what its own samples scored, and what held-out problems say.

Written into the artifact as `training/curve.json`, and read by the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from engines.rollout.evaluator import Evaluated
from engines.rollout.metrics import verdict
from engines.types import DISAGREEMENT, Sample
from infra.config import Config
from tasks.evaluate.score_statistics import (
    best_of_n_kl,
    budgets,
    chosen_by,
    mean,
    problem_means,
    standard_error,
)
from tasks.rl.spec import RlSpec

CURVE_FILE = "training/curve.json"
"""of an artifact"""


class BestOfN(Config):
    """That one of n samples which the reward models like best."""

    n: int
    kl: float
    """how far that is from one sample, in nats"""
    outcome: float
    """expected, mean over problems"""
    stderr: float
    """of the outcome"""
    proxy: float
    """what the reward models give it"""


class ScorePoint(Config):
    """One version of the policy on one domain's held-out problems."""

    step: int
    """steps that were done"""
    version: int
    """of the weights; they wrote every token"""
    outcome: float | None
    """mean over problems, 0 to 1, of the rollouts with a verdict. None: no problem has one"""
    stderr: float
    """standard error of the outcome, over problems"""
    problems: int
    """that were finished in time, and have a verdict"""
    wanted: int
    """problems that were begun"""
    proxy: float | None = None
    """what the reward models give, by their weights, mean over problems. None: none is asked"""
    best_of_n: list[BestOfN] = Field(default_factory=list[BestOfN])
    """of the policy that the stage starts from, for n = 1, 2, 4, ... samples of a problem"""


class Curve(Config):
    """Example: {"training": {"1": 0.25}, "held_out": {"agent": [{"step": 0, "outcome": 0.2,
    ...}]}}"""

    training: dict[int, float] = Field(default_factory=dict[int, float])
    """by step: mean outcome of what was sampled since the step before"""
    held_out: dict[str, list[ScorePoint]] = Field(default_factory=dict[str, list[ScorePoint]])
    """by domain, in the order of steps"""
    kl_from_start: dict[int, float] = Field(default_factory=dict[int, float])
    """by step: KL of the policy that sampled it from the stage's start, in nats an answer. Empty
    where the loss has no KL term"""

    def kl_after(self, step: int) -> float | None:
        """Return the KL of the policy after a step; of the last one that the next step sampled from
        it."""
        if not self.kl_from_start or step == 0:
            return 0.0 if self.kl_from_start else None
        later = [at for at in self.kl_from_start if at > step]
        return self.kl_from_start[min(later, default=max(self.kl_from_start))]

    def outcomes(self, domain: str) -> dict[int, float]:
        """Return the outcomes of held-out problems, by step."""
        points = self.held_out.get(domain, [])
        return {p.step: p.outcome for p in points if p.outcome is not None}

    def write(self, folder: Path) -> None:
        path = folder / CURVE_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.model_dump_json(indent=1))


def more_curves(spec: RlSpec) -> list[str]:
    """Metrics of a step that the report draws beside the usual ones."""
    rewards = (term.title for domain in spec.domains for term in domain.rewards)
    disagreements = [f"{DISAGREEMENT}_{title}" for title in rewards]
    return [*(["temperature"] if spec.settings.temperature_search else []), *disagreements]


def score_points(evaluated: Evaluated) -> dict[str, ScorePoint]:
    """By domain."""
    points: dict[str, ScorePoint] = {}
    for domain, groups in evaluated.groups.items():
        samples = [[rollout.samples[0] for rollout in group] for group in groups]
        outcomes = [list(map(verdict, group)) for group in samples]
        means = [value for value in problem_means(outcomes) if value is not None]
        compared = _compared(samples)
        points[domain] = ScorePoint(
            step=evaluated.step,
            version=evaluated.version,
            outcome=mean(means) if means else None,
            stderr=standard_error(means),
            problems=len(means),
            wanted=evaluated.wanted,
            proxy=mean([mean(proxies) for proxies, _ in compared]) if compared else None,
            best_of_n=list(_best_of_n(compared)) if evaluated.step == 0 else [],
        )
    return points


def _compared(groups: Sequence[Sequence[Sample]]) -> list[tuple[list[float], list[float]]]:
    """Return, for each problem's answers with a verdict, what reward models give and the outcomes;
    nothing where none is asked. An answer that they were not shown, as it broke the format, counts
    as the worst of all."""
    judged = [[(_proxy(s), v) for s in group if (v := verdict(s)) is not None] for group in groups]
    known = [proxy for pairs in judged for proxy, _ in pairs if proxy is not None]
    return [
        ([min(known) if proxy is None else proxy for proxy, _ in pairs], [v for _, v in pairs])
        for pairs in judged
        if pairs and known
    ]


def _proxy(sample: Sample) -> float | None:
    """In an evaluation only reward models are asked beside the outcome."""
    weights = {name: w for name, w in sample.reward_weights.items() if name != "outcome" and w}
    given = (weight * sample.rewards.get(name, 0.0) for name, weight in weights.items())
    return sum(given) if weights else None


def _best_of_n(compared: Sequence[tuple[list[float], list[float]]]) -> Iterator[BestOfN]:
    """Each over the problems with so many answers; nothing where all have one."""
    for n in budgets(max((len(proxies) for proxies, _ in compared), default=0)):
        enough = [(proxies, outcomes) for proxies, outcomes in compared if len(proxies) >= n]
        outcomes = [chosen_by(proxies, outcomes, n) for proxies, outcomes in enough]
        yield BestOfN(
            n=n, kl=best_of_n_kl(n), outcome=mean(outcomes), stderr=standard_error(outcomes),
            proxy=mean([chosen_by(proxies, proxies, n) for proxies, _ in enough]),
        )  # fmt: skip


def point_metrics(points: Mapping[str, ScorePoint]) -> dict[str, float]:
    """Return them as they go to the tracker."""
    metrics: dict[str, float] = {}
    for domain, point in points.items():
        if point.outcome is not None:
            metrics[f"eval_outcome_{domain}"] = point.outcome
            metrics[f"eval_stderr_{domain}"] = point.stderr
        metrics[f"eval_problems_{domain}"] = float(point.problems)
    return metrics
