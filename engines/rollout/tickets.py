"""Tickets: the serial numbers of the problems drawn for a stage.

Ticket n names one problem, whenever and wherever it is rolled out: seeds, group ids and the journal
hang on it, never on a step or on who arrives first. Domains take turns: of D domains, ticket n is
of domain n mod D and has its problem n div D, counted from `start`. A data source of another kind
(`engines.rollout.sources`) changes which problem that is, and nothing else.

What such a source picked is kept for as long as a ticket may be rolled again, in the checkpoint.
What a learning source was told is kept for good, so that a resumed stage can tell it to a new one:

    told ──▶ since the checkpoint before ──▶ a note with the number of results before it
    a later attempt ── the notes as they were written, up to the checkpoint's count ──▶ told again
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Literal, TypeAlias

import orjson

from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.records.journals import Notes
from engines.rollout.sources import (
    DataSource,
    LearningSource,
    Pick,
    TicketResult,
    build_source,
    require_can_learn,
    result_of,
)
from engines.types import Group, Problem, Split
from infra.errors import CorruptArtifact, InputError

OnStale: TypeAlias = Literal["drop", "requeue"]
"""what becomes of a ticket whose rollouts took too long to be trained on; requeue: rolled again"""

_PARTS_OF_A_STEP = 4
"""in which tickets start, while others are under way"""
_MOST_AT_ONCE = 8
"""tickets that are worth waiting for to start them together: their turns fill a few requests"""


@dataclass(frozen=True, slots=True)
class Admission:
    """Example: Admission(groups_per_step=4, oversample=1.5, waves=2): 6 tickets, then 3 for 2
    groups that are still missing."""

    groups_per_step: int
    oversample: float = 1.0
    """tickets drawn divided by groups that are missing"""
    waves: int = 1
    """most waves before an update; then it takes what there is"""
    max_staleness: int = 0

    def in_turns(self, waiting: int, waves: int) -> int:
        """Return how many may start, when `waiting` groups wait to be trained on and `waves` waves
        were rolled since the last update."""
        return self._wave(waiting) if waves < self.waves else 0

    def beside_training(
        self,
        *,
        waiting: int,
        rolling: int,
        drawn: int,
        trained: int,
        steps: int,
        is_training: bool = False,
    ) -> int:
        """Return how many may start, when `rolling` tickets are under way, `drawn` were drawn since
        the stage began, and `trained` of its `steps` steps are done. `is_training`: the groups of
        the next step are taken already, so that what starts now is a version older at its turn."""
        ahead = min(self.max_staleness + 1, steps - trained) - is_training
        if ahead < 1:
            return 0
        of_next_step = max(0, self.groups_per_step - waiting)
        of_later_steps = max(0, ahead * self.groups_per_step - waiting) - of_next_step
        wanted = self._wave(waiting) + of_later_steps
        limit = (trained + is_training + ahead) * self.waves * self._wave(0)
        count = max(0, min(wanted - rolling, limit - drawn))
        together = min(self.groups_per_step / _PARTS_OF_A_STEP, _MOST_AT_ONCE, limit - drawn)
        return 0 if rolling and count < together else count

    def in_rounds(
        self, *, waiting: int, rolling: int, unfinished: float, drawn: int, steps_left: int
    ) -> int:
        """Return how many may start beside the `rolling` ones, of which some go on in later steps,
        when `drawn` were since the last update: none that could not be trained on in time.
        `unfinished`: groups' worth of rollouts, of those that roll; it keeps servers busy."""
        in_time = self.groups_per_step * min(self.max_staleness + 1, steps_left)
        more = math.ceil(self._wave(0) - waiting - unfinished)
        most = min(more, in_time - waiting - rolling)
        return max(0, min(most, self.waves * self._wave(0) - drawn))

    def due(self, versions: Sequence[int], now: int) -> int:
        """Return how many of the oldest tickets the next step has to train on, as each step has
        places for `groups_per_step`. `versions`: in the order of tickets, those of which all that
        wait or roll began. Example: of Admission(2, max_staleness=1) at version 3, versions [2, 2,
        3] -> 2"""
        steps_left = [version + self.max_staleness - now for version in versions]
        places = enumerate((self.groups_per_step * left for left in steps_left), 1)
        return max((count - later for count, later in places), default=0)

    def _wave(self, waiting: int) -> int:
        return rounded_up(max(0, self.groups_per_step - waiting), self.oversample)


def rounded_up(count: int, factor: float) -> int:
    """Return the product, rounded up. A factor is what a person writes: 100 x 1.1 is 110, of
    which floats make 110.00000000000001."""
    return math.ceil(count * Fraction(str(factor)))


@dataclass(frozen=True, slots=True)
class Ticket:
    """One problem of a stage."""

    number: int
    """from 0"""
    domain: LiveDomain
    problem: Problem
    group_size: int | None = None
    """rollouts of it; None: as many as of the stage's other tickets"""

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

    def left_until(self, tickets: Collection[int]) -> int:
        """Return how many are still to be drawn until each of these numbers is."""
        return max(0, max(tickets, default=-1) + 1 - self.next)

    def again(self, number: int) -> Ticket:
        """Return a ticket that was drawn before. Raises InputError."""
        return self._in_a_row([number])[0]

    def tell(self, groups: Sequence[Group]) -> None:
        """What came of a wave of tickets, in their order: this order of domains learns nothing."""

    def state(self, first_open: int) -> dict[str, Any]:
        """Return what a checkpoint holds of it; tickets below `first_open` are never asked for
        again.
        """
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
        """Return the tickets of one domain and positions that follow each other."""
        name, position = self._picked[numbers[0]]
        domain, first = self._by_name[name], self._start + position
        problems = draw_problems(domain.curriculum, self._split, len(numbers), self._seed, first)
        return [Ticket(n, domain, p) for n, p in zip(numbers, problems, strict=True)]


def _runs(numbers: Sequence[int], picked: Mapping[int, tuple[str, int]]) -> Iterator[list[int]]:
    """Yield the same numbers in pieces whose problems can be drawn at once."""
    run: list[int] = []
    for number in sorted(numbers, key=lambda n: (picked[n], n)):
        domain, position = picked[number]
        if run and picked[run[-1]] != (domain, position - 1):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


class ToldResults:
    """What one stage was told."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.count = 0
        """all results so far"""
        self._unsaved: list[TicketResult] = []

    def add(self, results: Sequence[TicketResult]) -> None:
        self._unsaved += results
        self.count += len(results)

    def take_unsaved(self) -> Callable[[], None]:
        """-> what notes the results since the checkpoint before, in a thread."""
        results, self._unsaved = self._unsaved, []
        if not results:
            return lambda: None
        return partial(self._write, self.count - len(results), results)

    def read(self, count: int) -> list[TicketResult]:
        """The first `count`, from the notes of earlier attempts; go on after them. Raises
        CorruptArtifact if some are missing."""
        found: list[TicketResult] = []
        # An attempt that went on from an earlier checkpoint wrote after those before it: what these
        # noted from there on it was not told.
        for note in self._notes.notes("told", 0, count - 1) if count else ():
            first, rows = orjson.loads(note)
            found[first:] = [TicketResult(*row) for row in rows]
        if len(found) < count:
            raise CorruptArtifact(
                f"{len(found)} of {count} results that the data source was told are there: notes of"
                " the stage were deleted. Delete its checkpoints, and run again"
            )
        self.count, self._unsaved = count, []
        return found[:count]

    def _write(self, first: int, results: Sequence[TicketResult]) -> None:
        self._notes.note("told", first, orjson.dumps([first, [astuple(r) for r in results]]))


def build(
    name: str,
    options: Mapping[str, Any],
    domains: Sequence[LiveDomain],
    *,
    split: Split,
    seed: int,
    start: int,
    limit: int,
    is_beside_training: bool,
    notes: Notes,
) -> TicketSource:
    """The tickets of a stage, with the problems that the source `name` picks; `limit`: of each
    domain's problems from `start` on.

    Raises `InputError` for an unknown name, a path that does not lead to a source, options that it
    does not take, or one that learns where it cannot.
    """
    source = build_source(name, options, [domain.name for domain in domains], seed)
    if source is None:
        return TicketSource(domains, split=split, seed=seed, start=start)
    require_can_learn(name, source, is_beside_training)
    return ChosenTickets(
        domains, split=split, seed=seed, start=start, source=source, limit=limit, notes=notes
    )
