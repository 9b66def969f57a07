"""Whether a stage's optimizer steps trained anything: counted, and said at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.errors import TrainingStopped
from infra.store.stage_warning import StageWarning


class Updates:
    """Counts over a stage's steps; saved with its checkpoints."""

    def __init__(self) -> None:
        self.made = 0
        self.skipped = 0
        """steps that were to update a model and did not"""
        self._without_gradient = 0
        """of those made, the ones whose gradient was exactly 0"""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Take the trainer's metrics of one step in; empty where it was skipped."""
        if not metrics:
            self.skipped += 1
            return
        self.made += 1
        self._without_gradient += metrics.get("grad_norm", 1.0) == 0.0

    def require_gradient(self, why: str) -> None:
        """Raises TrainingStopped where every update's gradient was 0; `why` says what causes it."""
        if self.made and self._without_gradient == self.made:
            raise TrainingStopped(
                f"nothing was trained: the gradient was exactly 0 in each of {self.made} updates."
                f" {why}"
            )

    def warnings(self) -> Iterator[StageWarning]:
        """Of updates without a gradient, where they are more than half."""
        if 2 * self._without_gradient > self.made:
            yield StageWarning(
                what=f"{self._without_gradient} of {self.made} updates had a gradient of exactly 0",
                cause="what these steps trained on holds nothing to learn",
                advice="look at the curves of `grad_norm` and of the loss",
                figures={"updates": self.made, "without_gradient": self._without_gradient},
            )

    def state(self) -> dict[str, int]:
        """What `restore` takes."""
        return {"made": self.made, "skipped": self.skipped, "zero": self._without_gradient}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.made, self.skipped = state["made"], state["skipped"]
        self._without_gradient = state["zero"]
