"""A curriculum of which only the problems are drawn that an `admit` stage let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engines.types import Curriculum, Demonstration, Environment, Problem, Split
from infra.errors import InputError


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
        """Those of the first `count` whose problem was admitted. Raises InputError, as above."""
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
