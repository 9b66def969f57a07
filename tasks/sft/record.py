"""What a supervised stage remembers: its progress and totals, saved with each checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks.series import Series
from tasks.stage import Reporter
from tasks.updates import Updates

_STATE_FILE = "state.json"
_WINDOW = 20
"""number of last steps over which the summary averages the loss"""
_CURVES = ("loss", "grad_norm", "lr")


class SftRecord:
    """Follows a run step by step; restored by a resumed attempt."""

    def __init__(self, *, reporter: Reporter, steps: int) -> None:
        self._reporter = reporter
        self._steps = steps
        self.step = 0
        self.series = Series(_CURVES)
        self.updates = Updates()
        self._losses: list[float] = []
        self._tokens = 0.0
        self._seconds = 0.0
        self._checkpoint_seconds = 0.0
        self._unsaved: dict[int, dict[str, float]] = {}

    def observe(self, steps: list[dict[str, float]]) -> None:
        """Take the metrics of the next steps in, and report them."""
        for metrics in steps:
            self.step += 1
            self._tokens += metrics["tokens"]
            self._seconds += metrics["seconds"]
            self._losses = [*self._losses, metrics["loss"]][-_WINDOW:]
            self._unsaved[self.step] = metrics
            self.series.observe(self.step, metrics)
            self.updates.observe(metrics)
            self._reporter.metrics(self.step, metrics)
        self._reporter.progress(self.step, self._steps, f"loss {self._losses[-1]:.4f}")

    def conclude(self) -> None:
        """At the end of the stage. Raises TrainingStopped where nothing was trained."""
        self.updates.require_gradient(
            "No token of the data counts in the loss: look at its `weight`, `train` and `loss`"
            " fields, with `tributary preview`"
        )
        for warning in self.updates.warnings():
            self._reporter.keep_warning(warning)

    def checkpointed(self, seconds: float) -> None:
        """Take in how long checkpoints stopped the run."""
        self._checkpoint_seconds += seconds

    def summary(self) -> dict[str, float]:
        """The artifact's metrics. Seconds are summed over all attempts; those of training are
        the trainer's own."""
        return {
            "steps": float(self.step),
            "loss": fmean(self._losses) if self._losses else 0.0,
            "train_tokens": self._tokens,
            "train_seconds": self._seconds,
            "train_tokens_per_s": self._tokens / self._seconds if self._seconds else 0.0,
            "checkpoint_seconds": self._checkpoint_seconds,
        }

    def save(self, folder: Path) -> None:
        """Write what `restore` needs into a checkpoint's folder."""
        state = {
            "step": self.step,
            "losses": self._losses,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "checkpoint_seconds": self._checkpoint_seconds,
            "metrics": self._unsaved,
            "series": self.series.state(),
            "updates": self.updates.state(),
        }
        (folder / _STATE_FILE).write_text(json.dumps(state))
        self._unsaved = {}

    @property
    def score(self) -> float:
        """What makes one checkpoint better than another: the lower mean loss."""
        return -fmean(self._losses)

    def restore(self, folder: Path) -> None:
        """Take a checkpoint's record up, and report the steps since the one before it again:
        points still on their way when the attempt was killed would be missing otherwise, and the
        tracker drops those it has."""
        state: dict[str, Any] = json.loads((folder / _STATE_FILE).read_text())
        self.step, self._losses = state["step"], state["losses"]
        self._tokens, self._seconds = state["tokens"], state["seconds"]
        self._checkpoint_seconds = state["checkpoint_seconds"]
        self.series.restore(state["series"])
        self.updates.restore(state["updates"])
        for step, metrics in state["metrics"].items():
            self._reporter.metrics(int(step), metrics)
