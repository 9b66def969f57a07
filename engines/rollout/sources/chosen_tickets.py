"""ChosenTickets: tickets whose problems a data source picks.

What was picked is kept for as long as a ticket may be rolled again, in the checkpoint. What a
learning source was told is kept for good, so that a resumed stage can tell it to a new one: in
notes beside the checkpoints (`told_results.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from engines.draws import draw_problems
from engines.rollout.drivers.live_domain import LiveDomain
from engines.rollout.records.notes import Notes
from engines.rollout.sources.data_source import (
    DataSource,
    LearningSource,
    Pick,
    TicketResult,
    result_of,
)
from engines.rollout.sources.told_results import ToldResults
from engines.rollout.tickets import Ticket, TicketSource
from engines.types import Group, Split
from infra.errors import InputError


class ChosenTickets(TicketSource):
    """Raises InputError where its source raises, or picks what is not there."""

    def __init__(
        self,
        domains: Sequence[LiveDomain],
        *,
        split: Split,
        seed: int,
        start: int,
        source: DataSource,
        limit: int,
        notes: Notes,
    ) -> None:
        """`limit`: positions below it are the stage's; a later stage has those from there on."""
        super().__init__(domains, split=split, seed=seed, start=start)
        self._by_name = {domain.name: domain for domain in domains}
        self._source = source
        self._limit = limit
        self._picked: dict[int, tuple[str, int]] = {}
        """domain and position, by ticket"""
        self._in_order: defaultdict[str, int] = defaultdict(int)
        """problems that were picked as the next one, by domain"""
        self._results = ToldResults(notes)

    def draw(self, count: int) -> list[Ticket]:
        numbers = range(self.next, self.next + count)
        for number in numbers:
            self._picked[number] = self._resolved(number)
        self.next += count
        made = {t.number: t for run in _runs(numbers, self._picked) for t in self._tickets(run)}
        return [made[number] for number in numbers]

    def again(self, number: int) -> Ticket:
        return self._tickets([number])[0]

    def tell(self, groups: Sequence[Group]) -> None:
        if isinstance(self._source, LearningSource):
            results = [result_of(group, *self._picked[group.ticket]) for group in groups]
            self._results.add(results)
            self._teach(self._source, results)

    def state(self, first_open: int) -> dict[str, Any]:
        self._picked = {n: picked for n, picked in self._picked.items() if n >= first_open}
        return {
            **super().state(first_open),
            "picked": [[n, *picked] for n, picked in self._picked.items()],
            "in_order": dict(self._in_order),
            "told": self._results.count,
        }

    def take_unsaved(self) -> Callable[[], None]:
        return self._results.take_unsaved()

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._picked = {n: (domain, position) for n, domain, position in state["picked"]}
        self._in_order.update(state["in_order"])
        results = self._results.read(state["told"])
        if isinstance(self._source, LearningSource):
            self._teach(self._source, results)

    def _teach(self, source: LearningSource, results: Sequence[TicketResult]) -> None:
        for result in results:
            self._asked("told", result, partial(source.told, result))

    def _resolved(self, number: int) -> tuple[str, int]:
        pick: Any = self._asked("pick", number, lambda: self._source.pick(number))
        if not isinstance(pick, Pick) or pick.domain not in self._by_name:
            raise InputError(
                f"data_source: pick({number}) gave {pick!r:.80}; give a Pick of one of the stage's"
                f" domains: {', '.join(self._by_name)}"
            )
        if pick.position is None:
            self._in_order[pick.domain] += 1
            return pick.domain, self._in_order[pick.domain] - 1
        if not 0 <= pick.position < self._limit:
            raise InputError(
                f"data_source: pick({number}) gave position {pick.position} of {pick.domain};"
                f" allowed: 0 to {self._limit - 1}, as other stages have the problems after these"
            )
        return pick.domain, pick.position

    def _asked(self, method: str, about: object, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise InputError(
                f"data_source: {method}({about}) raised {type(error).__name__}: {error}"
            ) from error

    def _tickets(self, numbers: Sequence[int]) -> list[Ticket]:
        """Of one domain and positions that follow each other."""
        name, position = self._picked[numbers[0]]
        domain, first = self._by_name[name], self._start + position
        problems = draw_problems(domain.curriculum, self._split, len(numbers), self._seed, first)
        return [Ticket(n, domain, p) for n, p in zip(numbers, problems, strict=True)]


def _runs(numbers: Sequence[int], picked: Mapping[int, tuple[str, int]]) -> Iterator[list[int]]:
    """The same numbers in pieces whose problems can be drawn at once."""
    run: list[int] = []
    for number in sorted(numbers, key=lambda n: (picked[n], n)):
        domain, position = picked[number]
        if run and picked[run[-1]] != (domain, position - 1):
            yield run
            run = []
        run.append(number)
    if run:
        yield run
