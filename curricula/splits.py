"""Which split a task belongs to, and in which order an epoch takes the tasks.

The content's checksum modulo 8 picks the split, so a problem can be in one split only, whatever the
seed, the position or the family it was drawn under.

Curricula may be asked for all that they offer for admission, and restricted to what was admitted.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from engines.types import Curriculum, Demonstration, Environment, Message, Problem, Split
from infra.errors import InputError

BUCKETS = 8
OWNERS: Mapping[Split, frozenset[int]] = {
    "heldout": frozenset({0}),
    "sft": frozenset({1, 2}),
    "rl": frozenset({3, 4, 5}),
    "distill": frozenset({6, 7}),
}


def split_of(content: str) -> Split:
    """The split of a problem with this content, e.g. `split_of("12+30")`."""
    bucket = zlib.crc32(content.encode()) % BUCKETS
    return next(split for split, buckets in OWNERS.items() if bucket in buckets)


_KEPT = 2
"""orders of the same rows: at an epoch's edge rollouts of both epochs are under way"""


class EpochOrders:
    """Remembers those that were asked for last: one of a million rows takes a second to make."""

    def __init__(self) -> None:
        self._orders: defaultdict[Hashable, OrderedDict[str, array[int]]]
        self._orders = defaultdict(OrderedDict)

    def of(self, rows: Hashable, count: int, seed: str) -> array[int]:
        """The places of `count` rows in the order that follows from the seed; `rows` says which
        rows they are."""
        orders = self._orders[rows]
        if seed not in orders:
            orders[seed] = array("q", random.Random(seed).sample(range(count), count))
        orders.move_to_end(seed)
        if len(orders) > _KEPT:
            orders.popitem(last=False)
        return orders[seed]


@runtime_checkable
class Admissible(Curriculum, Protocol):
    """A curriculum that can solve its own problems, and knows what would give them away."""

    def solution(self, problem: Problem) -> Sequence[Message]:
        """The assistant's turns that solve it, with tool calls, the last without."""
        ...

    def secrets(self, problem: Problem) -> Sequence[str]:
        """Texts that neither the prompt nor an answer of a tool may hold before it is solved."""
        ...


class Admitted:
    """Held-out problems are the curriculum's own; those of other splits are the admitted ones, in
    their order. After the last of a split the first comes again, as ID@2, then as ID@3 and so on.
    """

    def __init__(self, curriculum: Curriculum, problems: Mapping[Split, Sequence[Problem]]) -> None:
        self._curriculum, self._problems = curriculum, problems

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        """Raises InputError for a split of which no problem was tried."""
        if split == "heldout":
            return self._curriculum.problems(split, count, seed, start)
        there = self._there(split)
        return [_at(there, place) for place in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Keep those of the first `count` demonstrations whose problem was admitted.

        Raises InputError, as above.
        """
        ids = {problem.id for problem in self._there("sft")}
        shown = self._curriculum.demonstrations(count, seed)
        return [demonstration for demonstration in shown if demonstration.problem.id in ids]

    def environment(self) -> Environment | None:
        return self._curriculum.environment()

    def _there(self, split: Split) -> Sequence[Problem]:
        there = self._problems.get(split)
        if not there:
            raise InputError(f"no problem of the split {split!r} was admitted")
        return there


def _at(problems: Sequence[Problem], place: int) -> Problem:
    epoch, position = divmod(place, len(problems))
    problem = problems[position]
    return replace(problem, id=f"{problem.id}@{epoch + 1}") if epoch else problem
