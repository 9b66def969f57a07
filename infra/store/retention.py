"""Which checkpoints of an unfinished stage are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import PositiveInt

from infra.config import Config

NoteKind: TypeAlias = Literal[
    "rollouts", "turns", "takes", "trained", "shown", "told", "searches", "findings"
]
"""`rollouts`: finished ones, by ticket. `turns`: those of unfinished rollouts, by ticket. `takes`:
which tickets a step is trained on, by step. `trained`: the rollouts of these tickets, by step,
where they are kept for a replay. `shown`: the rollouts to browse of the steps before a checkpoint,
by its step. `told`: results that a data source was told, by how many there were before.
`searches`: what came of one for the sampling temperature, by the step before it.
`findings`: on problems that were tried, under 0"""


class Retention(Config):
    """The newest are always kept, others on request. All are deleted when the stage is done."""

    last: PositiveInt = 2
    """number of newest checkpoints to keep; with two, one may be damaged"""
    every: PositiveInt | None = None
    """also keep those whose step is a multiple of this; None: keep none of these"""
    best: bool = False
    """also keep the one with the highest score: RL's mean outcome, SFT's lowest loss"""


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A whole checkpoint as the policy sees it. Example: Kept("step-00000010-a1", 10, 0.62)"""

    name: str
    step: int
    score: float | None


def retained(newest_first: Sequence[KeptCheckpoint], policy: Retention) -> set[str]:
    """Names of the checkpoints that stay."""
    kept = {c.name for c in newest_first[: policy.last]}
    if policy.every is not None:
        kept |= {c.name for c in newest_first if c.step % policy.every == 0}
    scored = [(c.score, c.step, c.name) for c in newest_first if c.score is not None]
    if policy.best and scored:
        kept.add(max(scored)[2])
    return kept
