"""What became of a stage, in a few words, from its artifact's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

_UNIFIED = "unified"
_SCORE = "score/"
_MOST = 3
"""scores in one line"""


def outcome_of(metrics: Mapping[str, float], planned_steps: int) -> str:
    """Example: `solved at step 9 of 24: outcome 0.31 to 0.97`; empty where nothing tells one."""
    steps = int(metrics.get("steps", 0))
    if "outcome_last" in metrics:
        change = f"outcome {metrics['outcome_first']:.2f} to {metrics['outcome_last']:.2f}"
        if metrics.get("solved"):
            return f"solved at step {steps} of {planned_steps}: {change}"
        return f"{change} in {steps} steps"
    if "loss" in metrics:
        return f"loss {metrics['loss']:.3f} after {steps} steps"
    if "admitted" in metrics:
        return f"{int(metrics['admitted'])} of {int(metrics['tried'])} problems admitted"
    if "tensors_differing" in metrics:
        differing, tensors = int(metrics["tensors_differing"]), int(metrics["tensors"])
        return f"{differing} of {tensors} tensors differ" if differing else "the same weights"
    if "rows" in metrics:
        return f"{int(metrics['rows'])} rows"
    if "parameters" in metrics:
        return f"{int(metrics['parameters']):,} parameters"
    return _scores(metrics)


def _scores(metrics: Mapping[str, float]) -> str:
    """The unified model's mean over domains; without one, that of the best models."""
    by_model: dict[str, list[float]] = {}
    for name, score in metrics.items():
        if name.startswith(_SCORE):
            by_model.setdefault(name.split("/")[1], []).append(score)
    means = {model: fmean(scores) for model, scores in by_model.items()}
    ranked = [_UNIFIED] if _UNIFIED in means else sorted(means, key=lambda model: -means[model])
    return ", ".join(f"{model} {means[model]:.2f}" for model in ranked[:_MOST])
