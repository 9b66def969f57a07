"""Tickets: the serial numbers of the problems drawn for a stage.

Ticket n names one problem, whenever and wherever it is rolled out: seeds, group ids and the journal
hang on it, never on a step or on who arrives first. Domains take turns: of D domains, ticket n is
of domain n mod D and has its problem n div D, counted from `start`. A data source of another kind
(`engines.rollout.sources`) changes which problem that is, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.draws import draw_problems
from engines.rollout.drivers.live_domain import LiveDomain
from engines.types import Group, Problem, Split


@dataclass(frozen=True, slots=True)
class Ticket:
    """One problem of a stage."""

    number: int
    """from 0"""
    domain: LiveDomain
    problem: Problem

    @property
    def group_id(self) -> str:
        return f"{self.number}/{self.problem.id}"


class TicketSource:
    """The endless, deterministic order of a split over domains: a, b, c, a, b, c, ..."""

    def __init__(
        self, domains: Sequence[LiveDomain], *, split: Split, seed: int, start: int = 0
    ) -> None:
        self._domains = domains
        self._split: Split = split
        self._seed = seed
        self._start = start
        self.next = 0
        """number of the next ticket; set it to go on from there"""

    def draw(self, count: int) -> list[Ticket]:
        """The next `count` tickets. Raises InputError."""
        numbers = range(self.next, self.next + count)
        self.next += count
        made: dict[int, Ticket] = {}
        for place in range(len(self._domains)):
            mine = [n for n in numbers if n % len(self._domains) == place]
            made |= {ticket.number: ticket for ticket in self._in_a_row(mine)}
        return [made[number] for number in numbers]

    def again(self, number: int) -> Ticket:
        """A ticket that was drawn before. Raises InputError."""
        return self._in_a_row([number])[0]

    def tell(self, groups: Sequence[Group]) -> None:
        """What came of a wave of tickets, in their order: this order of domains learns nothing."""

    def state(self, first_open: int) -> dict[str, Any]:
        """What a checkpoint holds of it; tickets below `first_open` are never asked for again."""
        return {"next": self.next}

    def take_unsaved(self) -> Callable[[], None]:
        """-> what writes, in a thread, the rest of what a checkpoint needs of it: here nothing."""
        return lambda: None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.next = state["next"]

    def _in_a_row(self, numbers: Sequence[int]) -> list[Ticket]:
        """Tickets of one domain whose problems follow each other."""
        if not numbers:
            return []
        domain = self._domains[numbers[0] % len(self._domains)]
        first = self._start + numbers[0] // len(self._domains)
        problems = draw_problems(domain.curriculum, self._split, len(numbers), self._seed, first)
        return [Ticket(n, domain, p) for n, p in zip(numbers, problems, strict=True)]
