"""How a cell ended, how long it takes until work is written again after a hit, and what is left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.programs.bench.rows import Row
from tests.programs.chaos.cells import RECOVERIES


@dataclass(frozen=True, slots=True)
class End:
    """A cell's result, as the record keeps it."""

    name: str
    holds: bool
    seconds: float
    recovery: float
    """seconds from the hit until a rollout, a step, a checkpoint or an artifact is written again;
    -1 where none was seen"""
    said: str
    """why it does not hold, or how it went on"""

    @property
    def part(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def row(self) -> Row:
        note = f"{self.seconds:.1f} s, work again after {self.recovery:.1f} s; {self.said}"
        return Row(self.name, float(self.holds), "identical", 1.0, note=note)


def recovery_rows(ends: Sequence[End]) -> list[Row]:
    """The slowest recovery of each kind of kill; kinds of which no cell was done are left out."""
    rows: list[Row] = []
    for kind, (parts, bound) in RECOVERIES.items():
        took = {e.name: e.recovery for e in ends if e.part in parts and e.recovery >= 0}
        if took:
            slowest = max(took, key=lambda name: took[name])
            note = (
                f"slowest of {len(took)}: {slowest}; median {statistics.median(took.values()):.1f}"
            )
            rows.append(Row(f"work again: {kind}", took[slowest], "s", bound, True, note))
    return rows


def left_row(paths: Sequence[str]) -> Row:
    """What a machine has left once everything on it has ended."""
    note = ", ".join(paths) or "temporary files and shared memory, after `tributary down`"
    return Row("left over at the end", float(len(paths)), "files", 0.0, True, note)
