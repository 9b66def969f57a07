"""The kill matrix: which part dies at which moment of the expert's RL stage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PARTS = ("job", "rank", "server", "manager", "flow")
"""job: the stage's driver. rank: a trainer rank. server: an SGLang server. manager: the fleet
manager's actor. flow: the process that runs the recipe"""
MOMENTS = (
    "mid-generation",
    "mid-train",
    "mid-publish",
    "mid-checkpoint",
    "committing",
    "between-stages",
)
WORST = (
    ("job", "mid-checkpoint"),
    ("rank", "mid-train"),
    ("server", "mid-publish"),
    ("manager", "mid-generation"),
    ("flow", "committing"),
    ("job", "mid-generation"),
)
"""those of `make test`"""


@dataclass(frozen=True, slots=True)
class Cell:
    part: str
    moment: str

    @property
    def name(self) -> str:
        return f"{self.part} {self.moment}"


def matrix(seed: int) -> list[Cell]:
    """All cells in an order of the seed's. Between two stages there is no job or rank to kill."""
    cells = [
        Cell(part, moment)
        for part in PARTS
        for moment in MOMENTS
        if moment != "between-stages" or part not in ("job", "rank")
    ]
    random.Random(seed).shuffle(cells)
    return cells


def worst() -> Sequence[Cell]:
    return [Cell(part, moment) for part, moment in WORST]
