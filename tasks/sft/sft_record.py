"""What a stage on given data remembers: its progress and totals, saved with each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tasks.series import Series
from tasks.stage import Reporter
from tasks.updates import Updates

_STATE_FILE = "state.json"
_WINDOW = 20
"""number of last steps over which the summary averages"""
_CURVES = ("loss", "grad_norm", "lr")


class SftRecord:
    """Follows a run step by step; restored by a resumed attempt."""

    def __init__(
        self, *, reporter: Reporter, steps: int, no_gradient: str, averaged: Sequence[str] = ()
    ) -> None:
        """`no_gradient`: what to look at where no update had one; `averaged`: metrics of the
        trainer that are summed up as the loss is."""
        self._reporter = reporter
        self._steps = steps
        self._no_gradient = no_gradient
        self.step = 0
        self.series = Series((*_CURVES, *averaged))
        self.updates = Updates()
        self._last: dict[str, list[float]] = {name: [] for name in ("loss", *averaged)}
        """of the last steps that have the metric"""
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
            for name in self._last.keys() & metrics.keys():
                self._last[name] = [*self._last[name], metrics[name]][-_WINDOW:]
            self._unsaved[self.step] = metrics
            self.series.observe(self.step, metrics)
            self.updates.observe(metrics)
            self._reporter.metrics(self.step, metrics)
        self._reporter.progress(self.step, self._steps, f"loss {self._last['loss'][-1]:.4f}")

    def conclude(self) -> None:
        """At the end of the stage. Raises TrainingStopped where nothing was trained."""
        self.updates.require_gradient(self._no_gradient)
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
            "loss": 0.0,
            **self.averages,
            "train_tokens": self._tokens,
            "train_seconds": self._seconds,
            "train_tokens_per_s": self._tokens / self._seconds if self._seconds else 0.0,
            "checkpoint_seconds": self._checkpoint_seconds,
        }

    def save(self, folder: Path) -> None:
        """Write what `restore` needs into a checkpoint's folder."""
        state = {
            "step": self.step,
            "last": self._last,
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
        return -fmean(self._last["loss"])

    @property
    def averages(self) -> dict[str, float]:
        """Means over the last steps."""
        return {name: fmean(values) for name, values in self._last.items() if values}

    def restore(self, folder: Path) -> None:
        """Take a checkpoint's record up, and report the steps since the one before it again:
        points still on their way when the attempt was killed would be missing otherwise, and the
        tracker drops those it has."""
        state: dict[str, Any] = json.loads((folder / _STATE_FILE).read_text())
        self.step, self._last = state["step"], state["last"]
        self._tokens, self._seconds = state["tokens"], state["seconds"]
        self._checkpoint_seconds = state["checkpoint_seconds"]
        self.series.restore(state["series"])
        self.updates.restore(state["updates"])
        for step, metrics in state["metrics"].items():
            self._reporter.metrics(int(step), metrics)
