"""A data source of your own that learns: problems that were hardly ever solved come again."""

from __future__ import annotations

from collections.abc import Sequence

from engines.rollout.sources import Pick, TicketResult


class HardAgain:
    """One ticket in `every` has a problem again of which less than `solved` of the rollouts were
    right; the others have new ones."""

    def __init__(self, domains: Sequence[str], every: int = 3, solved: float = 0.5) -> None:
        """`domains` are the stage's; they take turns."""
        self.domains = domains
        self.every = every
        self.solved = solved
        self._hard: list[tuple[str, int]] = []
        """domain and position of each hard problem, the one met longest ago first"""

    def pick(self, number: int) -> Pick:
        turn, place = divmod(number, self.every)
        if place == 0 and self._hard:
            domain, position = self._hard[turn % len(self._hard)]
            return Pick(domain, position)
        return Pick(self.domains[number % len(self.domains)])

    def told(self, result: TicketResult) -> None:
        problem = (result.domain, result.position)
        if problem in self._hard:
            self._hard.remove(problem)
        if result.outcome is not None and result.outcome < self.solved:
            self._hard.append(problem)
