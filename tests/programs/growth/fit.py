"""Exponents of measured costs: a cost of c * size ** e has exponent e."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.programs.growth.meter import FLOORS, Figure
from tests.programs.growth.registry import Growth

Measured = Mapping[Figure, float]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A row's costs at its sizes, and the exponents that count."""

    row: Growth
    costs: Sequence[Measured]
    """by size"""
    failure: str = ""
    """why there are none"""

    @property
    def exponents(self) -> dict[Figure, float]:
        return {
            figure: exponent(figure, self.row.sizes, [cost[figure] for cost in self.costs])
            for figure in (self.row.bounds if self.costs else ())
        }

    @property
    def broken(self) -> list[Figure]:
        """Figures that grow faster than they may."""
        bounds = self.row.bounds
        return [figure for figure, found in self.exponents.items() if found > bounds[figure]]

    @property
    def holds(self) -> bool:
        return not self.failure and not self.broken


def exponent(figure: Figure, sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the two larger sizes: a cost that is the same at all sizes weighs least there, and what
    is bounded has reached its bound. The smallest size shows where a growth begins."""
    small, large = (max(value, FLOORS[figure]) for value in values[-2:])
    return math.log(large / small) / math.log(sizes[-1] / sizes[-2])


def least(row: Growth, tries: Sequence[Sequence[Measured]]) -> list[Measured]:
    """The least of each cost over several tries: other processes only add to it."""
    return [
        {figure: min(one[at][figure] for one in tries) for figure in tries[0][at]}
        for at in range(len(row.sizes))
    ]
