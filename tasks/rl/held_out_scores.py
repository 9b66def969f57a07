"""From the rollouts of one evaluation to its scores."""

from __future__ import annotations

from collections.abc import Mapping

from engines.rollout.evaluator import Evaluated
from engines.rollout.metrics import verdict
from tasks.evaluate.statistics import mean, problem_means, standard_error
from tasks.rl.curve import ScorePoint


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
