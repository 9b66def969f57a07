"""The curve of a policy that trains: what its own samples scored, and what held-out problems say.

Written into the artifact as `training/curve.json`, and read by the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from engines.rollout.evaluator import Evaluated
from engines.rollout.metrics import verdict
from infra.config import Config
from tasks.evaluate.score_statistics import mean, problem_means, standard_error

CURVE_FILE = "training/curve.json"
"""of an artifact"""


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


class Curve(Config):
    """Example: {"training": {"1": 0.25}, "held_out": {"agent": [{"step": 0, "outcome": 0.2,
    ...}]}}"""

    training: dict[int, float] = Field(default_factory=dict[int, float])
    """by step: mean outcome of what was sampled since the step before"""
    held_out: dict[str, list[ScorePoint]] = Field(default_factory=dict[str, list[ScorePoint]])
    """by domain, in the order of steps"""

    def outcomes(self, domain: str) -> dict[int, float]:
        """Of held-out problems, by step."""
        points = self.held_out.get(domain, [])
        return {p.step: p.outcome for p in points if p.outcome is not None}

    def write(self, folder: Path) -> None:
        path = folder / CURVE_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.model_dump_json(indent=1))


def score_points(evaluated: Evaluated) -> dict[str, ScorePoint]:
    """By domain."""
    points: dict[str, ScorePoint] = {}
    for domain, groups in evaluated.groups.items():
        outcomes = [[verdict(rollout.samples[0]) for rollout in group] for group in groups]
        means = [value for value in problem_means(outcomes) if value is not None]
        points[domain] = ScorePoint(
            step=evaluated.step,
            version=evaluated.version,
            outcome=mean(means) if means else None,
            stderr=standard_error(means),
            problems=len(means),
            wanted=evaluated.wanted,
        )
    return points


def point_metrics(points: Mapping[str, ScorePoint]) -> dict[str, float]:
    """As they go to the tracker."""
    metrics: dict[str, float] = {}
    for domain, point in points.items():
        if point.outcome is not None:
            metrics[f"eval_outcome_{domain}"] = point.outcome
            metrics[f"eval_stderr_{domain}"] = point.stderr
        metrics[f"eval_problems_{domain}"] = float(point.problems)
    return metrics
