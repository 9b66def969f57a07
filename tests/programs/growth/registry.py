"""Rows of `make growth`: what is measured at three sizes, and how fast each cost may grow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tests.programs.growth.meter import Figure, Meter

HISTORY = 0.1
"""highest exponent of what should not depend on how much there was before"""
WORK = 1.1
"""highest exponent of what may cost as much again for as much again"""
Measure: TypeAlias = Callable[[int, Meter], None]


@dataclass(frozen=True, slots=True)
class Growth:
    """A row. `bounds` names the figures that count, each with its highest exponent."""

    name: str
    what: str
    """that the sizes count"""
    sizes: tuple[int, int, int]
    bounds: Mapping[Figure, float]
    measure: Measure


ROWS: dict[str, Growth] = {}
_MODULES = ("stage", "rollout", "reader", "data", "home", "tracking")
"""`NAME_rows.py`"""


def grows(
    name: str, what: str, sizes: tuple[int, int, int], **bounds: float
) -> Callable[[Measure], Measure]:
    """Register a row; `bounds` as in `Growth`, e.g. `cpu_s=WORK, memory=HISTORY`."""

    def register(measure: Measure) -> Measure:
        assert name not in ROWS, name
        figures = {Figure(figure): bound for figure, bound in bounds.items()}
        ROWS[name] = Growth(name, what, sizes, figures, measure)
        return measure

    return register


def load_rows() -> None:
    """Have all rows register themselves."""
    for name in _MODULES:
        importlib.import_module(f"tests.programs.growth.{name}_rows")
