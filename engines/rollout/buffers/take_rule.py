"""What a buffer of the user's own is: it chooses what a step trains on, and what may come again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.types import TRAINABLE, Group, one_per_rollout


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """What is known of a group that may be trained on."""

    ticket: int
    """serial number of its problem in the stage: lower ones are older"""
    domain: str
    problem_id: str
    rewards: tuple[float, ...]
    """of its rollouts that can be trained on"""
    outcomes: tuple[float, ...]
    """the verifier's verdicts on the same, 0 to 1"""
    num_tokens: int
    """that the policy wrote"""
    age: int
    """policy versions that its oldest token is behind now; at most `max_staleness`"""
    times_taken: int
    """steps that trained on it already"""


class TakeRule(Protocol):
    """Its answers depend on what it is given alone: a resumed stage asks again."""

    def take(self, waiting: Sequence[WaitingGroup], count: int, seed: int) -> Sequence[int]:
        """Tickets of the groups that the next step trains on: at most `count`, each once.

        `waiting` is in the order of tickets; `seed` is another one each step, for rules that draw.
        """
        ...

    def keeps(self, taken: WaitingGroup) -> bool:
        """Whether a group that was just taken (`times_taken` counts this step) may be taken again,
        in a later step, while it is not too old."""
        ...


def summary(group: Group, version: int, times_taken: int) -> WaitingGroup:
    """`version` is the policy's now."""
    kept = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
    versions = [s.oldest_version for s in group.samples if s.num_trained_tokens]
    return WaitingGroup(
        ticket=group.ticket,
        domain=group.problem.domain,
        problem_id=group.problem.id,
        rewards=tuple(s.reward for s in kept),
        outcomes=tuple(s.rewards.get("outcome", 0.0) for s in kept),
        num_tokens=sum(s.num_trained_tokens for s in group.samples),
        age=version - min(versions, default=version),
        times_taken=times_taken,
    )


def wrong_take(chosen: Sequence[int], waiting: Collection[int], count: int) -> str:
    """What is wrong with the tickets that a rule gave; empty if nothing is."""
    if len(set(chosen)) < len(chosen):
        return f"gave a ticket twice: {chosen}"
    if len(chosen) > count:
        return f"gave {len(chosen)} tickets, more than the {count} of a step"
    if unknown := set(chosen) - set(waiting):
        return f"gave tickets that do not wait: {sorted(unknown)}"
    return ""
