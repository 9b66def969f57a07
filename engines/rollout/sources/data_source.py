"""What a data source is: it says which problem a ticket stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engines.rollout.metrics import mean
from engines.types import TRAINABLE, Group, one_per_rollout


@dataclass(frozen=True, slots=True)
class Pick:
    """The problem of a ticket."""

    domain: str
    position: int | None = None
    """of the domain's problems, counted from the stage's first; None: the next one that no ticket
    of this stage had"""


@dataclass(frozen=True, slots=True)
class TicketResult:
    """What came of a ticket. The three numbers are None where no rollout can be trained on."""

    number: int
    domain: str
    position: int
    reward: float | None
    """mean over its rollouts"""
    outcome: float | None
    """the same of the verifier's verdicts, 0 to 1"""
    spread: float | None
    """largest minus smallest reward"""


class DataSource(Protocol):
    """Its picks depend on its options, the ticket's number, and what it was `told`: nothing else,
    no clock and no random state of its own, so that a resumed stage has the same tickets."""

    def pick(self, number: int) -> Pick:
        """The problem of ticket `number`, from 0. Asking changes nothing."""
        ...


@runtime_checkable
class LearningSource(DataSource, Protocol):
    """One that learns from results. Only with `max_staleness: 0`: above it, the clock decides which
    results are there when a ticket is drawn."""

    def told(self, result: TicketResult) -> None:
        """A ticket is over. Results come in the order of tickets, after each wave; a resumed stage
        tells them all again, to a new instance."""
        ...


def result_of(group: Group, domain: str, position: int) -> TicketResult:
    kept = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
    if not kept:
        return TicketResult(group.ticket, domain, position, None, None, None)
    rewards = [s.reward for s in kept]
    return TicketResult(
        number=group.ticket,
        domain=domain,
        position=position,
        reward=mean(rewards),
        outcome=mean(s.rewards.get("outcome", 0.0) for s in kept),
        spread=max(rewards) - min(rewards),
    )
