"""LiveDomain: a recipe's domain, ready for rollouts; and what a driver is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engines.rollout.drivers.session_host import SessionHost
from engines.rollout.protocols import Judge
from engines.types import Curriculum, Problem, Rollout


class Driver(Protocol):
    """What runs one rollout: it opens sessions, has the policy take turns, and finishes.

    What it raises makes the rollout a failed one, except EngineError, which it must let through.
    """

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        """`sessions.finish(...)`, after at least one turn."""
        ...


@dataclass(frozen=True, slots=True)
class LiveDomain:
    """A recipe's domain, built: where problems come from, what rolls them out, who judges."""

    name: str
    curriculum: Curriculum
    judge: Judge
    driver: Driver
    max_new_tokens: int
    """generated tokens of one rollout, over all its turns"""
    driver_timeout_s: float | None = None
    """what the driver may take between two turns; None: its own parts have their limits"""
