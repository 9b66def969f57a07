"""ProblemSource: draws fresh problems from several domains in turn, and knows where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engines.draws import draw_problems
from engines.rollout.live_domain import LiveDomain
from engines.types import Problem, Split

Drawn: TypeAlias = tuple[LiveDomain, Problem]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next draw begins. Example: Cursor(turn=96, starts={"agent": 48, "general": 48})"""

    turn: int
    """problems drawn so far over all domains"""
    starts: Mapping[str, int]
    """position of each domain's next problem"""


class ProblemSource:
    """The endless, deterministic order of a split over domains: a, b, c, a, b, c, ..."""

    def __init__(
        self, domains: Sequence[LiveDomain], *, split: Split, seed: int, start: int = 0
    ) -> None:
        self._domains = domains
        self._split: Split = split
        self._seed = seed
        self._turn = 0
        self._starts = {d.name: start for d in domains}

    @property
    def cursor(self) -> Cursor:
        return Cursor(self._turn, dict(self._starts))

    def seek(self, cursor: Cursor) -> None:
        self._turn = cursor.turn
        self._starts = {d.name: cursor.starts.get(d.name, 0) for d in self._domains}

    def draw(self, count: int) -> list[Drawn]:
        """The next `count` problems, one domain after the other. Raises InputError."""
        order = [self._domains[(self._turn + i) % len(self._domains)] for i in range(count)]
        fresh = {d.name: iter(self._take(d, order.count(d))) for d in self._domains}
        self._turn += count
        return [(domain, next(fresh[domain.name])) for domain in order]

    def _take(self, domain: LiveDomain, count: int) -> Sequence[Problem]:
        start = self._starts[domain.name]
        self._starts[domain.name] = start + count
        return draw_problems(domain.curriculum, self._split, count, self._seed, start)
