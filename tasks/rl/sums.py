"""A figure of every step, of which a stage's summary needs little: its mean, its ends, its most."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.rollout.metrics import mean

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
