"""When an RL run ends before its last step: solved, collapsed, or too many failed samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from infra.errors import TrainingStopped

FILLS_CONTEXT = "fills the context"
"""in the reason of a rollout whose prompt leaves no room for an answer"""
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
        """What a resumed run needs: see `restore`."""
        return {"outcomes": list(self.outcomes), "entropies": list(self.entropies)}

    def restore(self, history: dict[str, Any]) -> None:
        self.outcomes = list(history["outcomes"])
        self.entropies = list(history["entropies"])


def way_out(failure: str) -> str:
    """What a person can do about rollouts that fail for this reason."""
    if FILLS_CONTEXT in failure:
        return "Leave such prompts out, or take a model with a longer context"
    return "Repair the reward or the environment"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
