"""The kill matrix: which part dies at which moment of the expert's RL stage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Hit = Literal["kill", "freeze", "full", "restart"]
"""kill: SIGKILL. freeze: SIGSTOP. full: the store refuses for a while, as a full disk does.
restart: SIGKILL, then `tributary up`"""

MOMENTS = (
    "before-submit",
    "starting",
    "mid-generation",
    "mid-reward",
    "mid-train",
    "mid-publish",
    "mid-checkpoint",
    "committing",
    "between-stages",
)
"""before-submit: the attempt is claimed, no job knows of it. starting: its job has no engines"""
_IN_JOB = MOMENTS[1:-1]
_WITH_ENGINES = MOMENTS[2:-1]
_LONG = ("mid-generation", "mid-checkpoint", "committing")


@dataclass(frozen=True, slots=True)
class Part:
    """What is hit, how, and in which moments. Parts of a stack need the whole local stack."""

    name: str
    hit: Hit
    moments: Sequence[str]

    @property
    def needs_stack(self) -> bool:
        return self.hit == "restart"


PARTS = (
    Part("job", "kill", _IN_JOB),
    Part("rank", "kill", _WITH_ENGINES),
    Part("server", "kill", MOMENTS),
    Part("manager", "kill", MOMENTS),
    Part("flow", "kill", MOMENTS),
    Part("router", "kill", ("mid-generation", "mid-train", "mid-publish", "between-stages")),
    Part("pool", "kill", ("starting", "mid-generation", "mid-train", "between-stages")),
    Part("job-frozen", "freeze", ("mid-generation",)),
    Part("rank-frozen", "freeze", ("mid-train", "mid-publish", "mid-checkpoint")),
    Part("server-frozen", "freeze", ("mid-generation", "mid-publish")),
    Part("manager-frozen", "freeze", ("mid-generation", "between-stages")),
    Part("store-full", "full", _LONG),
    Part("prefect-server", "restart", _LONG),
    Part("prefect-worker", "restart", ("mid-generation", "committing")),
    Part("flow-and-worker", "restart", _LONG),
    Part("mlflow", "restart", _LONG),
    Part("ray-head", "restart", _LONG),
    Part("whole-stack", "restart", MOMENTS[:-1]),
)
"""job: the stage's driver. rank: a trainer rank. server: an SGLang server. manager: the fleet
manager's actor. flow: the process that runs the recipe. pool: the trainer pool's actor"""
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

    @property
    def hit(self) -> Hit:
        return _part(self.part).hit

    @property
    def needs_stack(self) -> bool:
        return _part(self.part).needs_stack


def matrix(seed: int) -> list[Cell]:
    """All cells in an order of the seed's; those that need the stack last."""
    cells = [Cell(part.name, moment) for part in PARTS for moment in part.moments]
    random.Random(seed).shuffle(cells)
    return sorted(cells, key=lambda cell: cell.needs_stack)


def worst() -> Sequence[Cell]:
    return [Cell(part, moment) for part, moment in WORST]


def _part(name: str) -> Part:
    return next(part for part in PARTS if part.name == name)
