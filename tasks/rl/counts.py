"""What became of everything that an RL stage sampled: rollouts by how they ended, groups by filter.

The counts are written into the artifact as `training/counts.json`. The warnings of a stage at its
end say all that a green state would hide.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.algorithms.parts import Need
from engines.rollout.consumer import StepResult
from engines.rollout.metrics import first_samples, mean
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from tasks.domain_verdicts import SOLVED, Verdicts
from tasks.training_record import FEWEST_POINTS, Series, Updates

RL_COUNTS_FILE = "training/counts.json"
"""of an artifact"""


class RlCounts:
    """Sums over a stage's steps; saved with its checkpoints."""

    def __init__(self) -> None:
        self._rollouts: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()

    def observe(self, result: StepResult) -> None:
        """Take one step in."""
        sampled = result.sampled
        trained = len(result.trained_on)
        self._rollouts.update(str(s.status) for s in first_samples(sampled.groups))
        self._groups.update(
            {
                "sampled": len(sampled.groups),
                "trained on": trained,
                "trained on again": result.reused if trained else 0,
                "of skipped steps": len(result.groups) - trained,
                "too old to train on": sampled.stale + len(result.dropped),
            }
        )
        for reason, count in sampled.filtered.items():
            self._groups[f"filtered: {reason}"] += count

    @property
    def filtered(self) -> dict[str, int]:
        """Groups that may not teach, by reason."""
        prefix = "filtered: "
        named = {n.removeprefix(prefix): k for n, k in self._groups.items() if n.startswith(prefix)}
        old = self._groups["too old to train on"]
        return {**named, "too old to train on": old} if old else named

    def state(self) -> dict[str, dict[str, int]]:
        """Return what `restore` takes. Example: {"rollouts": {"completed": 30, "truncated": 2},
        "groups": {"sampled": 4, "trained on": 3, "filtered: equal_rewards": 1}}"""
        return {"rollouts": dict(self._rollouts), "groups": dict(self._groups)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rollouts = Counter(state["rollouts"])
        self._groups = Counter(state["groups"])

    def write(self, folder: Path) -> None:
        """Into an artifact's folder."""
        path = folder / RL_COUNTS_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.state(), indent=1, sort_keys=True))


WINDOW = 3
"""number of values at the start and at the end whose means the summary compares"""


@dataclass(slots=True)
class Sums:
    """Sums that are as large after many steps as after few; saved with the stage's checkpoints."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0
    first: list[float] = field(default_factory=list[float])
    last: list[float] = field(default_factory=list[float])

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        if len(self.first) < WINDOW:
            self.first.append(value)
        self.last = [*self.last, value][-WINDOW:]

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def ends(self, name: str) -> dict[str, float]:
        """Means at either end; nothing where there is no value."""
        if not self.count:
            return {}
        return {f"{name}_first": mean(self.first), f"{name}_last": mean(self.last)}


_WINDOW = 3
_COLLAPSED = 0.001
"""nats a token"""
_ALIKE = 1e-4
"""nats a token between student and teachers"""


def warnings_of(
    updates: Updates,
    verdicts: Verdicts,
    filtered: Mapping[str, int],
    series: Series,
    needs: Collection[Need],
    domains: Collection[str] = (),
) -> list[StageWarning]:
    """Warnings of a finished stage. `filtered`: groups that were dropped, by reason; `needs`: of
    the advantage; `domains`: of the stage. Raises TrainingStopped where nothing was trained, unless
    the policy solved its problems from the beginning."""
    if not updates.made and not verdicts.is_solved:
        raise TrainingStopped(
            f"nothing was trained: none of {updates.skipped} steps made an update, as"
            f" {verdicts.nothing_learned(filtered)}"
        )
    updates.require_gradient(
        "The advantages are all 0: look at the rewards, the filter and the teachers"
    )
    found = [*_skipped(updates, verdicts, filtered), *verdicts.warnings(needs, domains)]
    return [*found, *updates.warnings(), *_collapsed(series), *_agreed(series)]


def _skipped(
    updates: Updates, verdicts: Verdicts, filtered: Mapping[str, int]
) -> Iterator[StageWarning]:
    if not updates.made:
        yield StageWarning(
            what="no step made an update: the model is the one that the stage began with",
            cause="it solves the problems already, so that the rewards of a group are equal",
            advice="draw harder problems, or try the reward: it may call every answer right",
        )
    elif updates.skipped:
        steps = updates.made + updates.skipped
        yield StageWarning(
            what=f"{updates.skipped} of {steps} steps made no update",
            cause=verdicts.nothing_learned(filtered),
            advice="draw other problems, more of them (`oversample`, `refill_rounds`), or more"
            " rollouts of each (`group_size`)",
            figures={"steps": steps, "skipped": updates.skipped},
        )


def _collapsed(series: Series) -> Iterator[StageWarning]:
    entropies, outcomes = series.last("entropy", _WINDOW), series.last("outcome_mean", _WINDOW)
    if len(entropies) < _WINDOW or not outcomes:
        return
    entropy, outcome = sum(entropies) / len(entropies), sum(outcomes) / len(outcomes)
    if entropy < _COLLAPSED and outcome < SOLVED:
        yield StageWarning(
            what=f"the policy's entropy fell to {entropy:.2g} nats a token at a mean outcome of"
            f" {outcome:.3f}",
            cause="its rollouts of one problem are all alike, so it explores nothing any more",
            advice="lower the learning rate, clip higher, or stop earlier",
            figures={"entropy": entropy, "outcome": outcome},
        )


def _agreed(series: Series) -> Iterator[StageWarning]:
    """Warn of teachers: a student that says the same from the beginning learns nothing."""
    distances = series.last("teacher_kl", 2 * FEWEST_POINTS)
    if distances and max(map(abs, distances)) < _ALIKE:
        yield StageWarning(
            what=f"student and teachers were never further apart than {_ALIKE:g} nats a token",
            cause="the teachers say what the student says already",
            advice="use teachers that were trained further",
            figures={"teacher_kl": distances[0]},
        )
