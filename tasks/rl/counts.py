"""What became of everything that an RL stage sampled: rollouts by how they ended, groups by filter.

Written into the artifact as `training/counts.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.rollout.consumer import StepResult
from engines.rollout.metrics import first_samples, mean

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
        trained = len(result.groups) if result.trained or result.critic else 0
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
        """What `restore` takes. Example: {"rollouts": {"completed": 30, "truncated": 2}, "groups":
        {"sampled": 4, "trained on": 3, "filtered: equal_rewards": 1}}"""
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
    """As large after many steps as after few; saved with the stage's checkpoints."""

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
