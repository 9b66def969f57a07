"""What the built-in curricula share: problems drawn from a seed, split by content, and solved.

A *draft* is a drawn problem with what its demonstrator knows. Position i of a split is a function
of (curriculum, split, seed, i) alone: drafts are drawn until one's content belongs to the split.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from curricula.splits import split_of
from curricula.vocabulary import slip
from engines.types import Demonstration, Environment, Json, Message, Problem, Split, Tool
from infra.errors import InputError
from infra.hooks import did_you_mean

MAX_DRAWS = 2_000
"""draws from one family for one position before the family counts as exhausted"""
_LOOKED_AT = 64
"""drafts of a family without a flaw before it counts as one that has none"""


def check_levels(levels: Sequence[str], allowed: Collection[str]) -> tuple[str, ...]:
    """The chosen levels; raises `InputError` for none, an unknown or a repeated one."""
    names = (levels,) if isinstance(levels, str) else tuple(levels)
    if not names:
        raise InputError(f"`levels` is empty; choose from {', '.join(allowed)}.")
    for name in names:
        check_choice("levels", name, allowed)
    if len(set(names)) < len(names):
        raise InputError(f"`levels` names a level twice: {', '.join(names)}.")
    return names


def check_choice(option: str, value: str, allowed: Collection[str]) -> str:
    if value not in allowed:
        raise InputError(
            f"`{option}`: unknown {value!r}.{did_you_mean(str(value), allowed)} "
            f"Allowed: {', '.join(allowed)}."
        )
    return value


def check_share(option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"`{option}` must be a share between 0 and 1, not {value!r}.")
    return float(value)


def check_flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"`{option}` must be true or false, not {value!r}.")
    return value


def check_count(option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"`{option}` must be a whole number of at least 1, not {value!r}.")
    return value


@dataclass(frozen=True, slots=True)
class Draft:
    """A drawn problem, e.g. `Draft("add", "12+30", "add 12 30", {"answer": "42"}, plan)`."""

    family: str
    prompt: str
    content: str
    """what makes two problems the same problem; decides the split"""
    reference: dict[str, Json]
    plan: tuple[Message, ...]
    """the right assistant turns, tool results left out"""
    tools: tuple[Tool, ...] = ()
    flawed: Callable[[], tuple[Message, ...]] | None = None
    """the turns of a demonstrator with the flaw that the curriculum knows, if it has one here"""
    is_fit: Callable[[], bool] | None = None
    """whether it is a problem at all, where that takes long to find out"""


Family = Callable[[random.Random], Draft]


class Procedural:
    """A curriculum of families, each at a level. Subclasses say which, and how a plan is played."""

    name: ClassVar[str]
    levels: ClassVar[Mapping[str, Sequence[Family]]]
    flaw: ClassVar[str] = "flawed"
    """the option's name for the share of demonstrations that follow `Draft.flawed`"""
    _flawed: float = 0.0

    def __init__(self, *, levels: Sequence[str] = ("easy",), noise: float = 0.0) -> None:
        """`noise` is the share of demonstrations with one wrong token."""
        self._levels = check_levels(levels, self.levels)
        self._noise = check_share("noise", noise)

    def set_flawed(self, share: float) -> None:
        """For curricula with a flaw. Raises `InputError` where none of the levels has it."""
        self._flawed = check_share(self.flaw, share)
        rng = random.Random(self.flaw)
        drafts = (family(rng) for family in self._families() for _ in range(_LOOKED_AT))
        if self._flawed and all(draft.flawed is None for draft in drafts):
            raise InputError(
                f"`{self.flaw}` does nothing: no problem of `levels` {', '.join(self._levels)} of"
                f" curriculum {self.name!r} is demonstrated so. Leave it out or choose others of"
                f" {', '.join(self.levels)}."
            )

    def _families(self) -> list[Family]:
        return [family for level in self._levels for family in self.levels[level]]

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        """The plan's turns as they come out, tool results included."""
        return tuple(plan)

    def is_thinking(self) -> bool | None:
        """Return whether its problems ask for a thought; None: the model's chat template
        decides."""
        return None

    def environment(self) -> Environment | None:
        return None

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        drafts = itertools.islice(self._drafts(split, seed, start), count)
        return [self._problem(d, split, seed, start + i) for i, d in enumerate(drafts)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        drafts = itertools.islice(self._drafts("sft", seed, 0), count)
        return [self._demonstration(draft, seed, i) for i, draft in enumerate(drafts)]

    def _demonstration(self, draft: Draft, seed: int, position: int) -> Demonstration:
        problem = self._problem(draft, "sft", seed, position)
        plan = self._plan(draft, seed, position)
        rng = random.Random(f"{self.name}/demonstrator/{seed}/{position}")
        if rng.random() < self._noise:
            plan = slip(plan, rng)
        return Demonstration(problem, self.play(problem, plan))

    def _plan(self, draft: Draft, seed: int, position: int) -> tuple[Message, ...]:
        rng = random.Random(f"{self.name}/{self.flaw}/{seed}/{position}")
        if draft.flawed is None or rng.random() >= self._flawed:
            return draft.plan
        return draft.flawed()

    def _problem(self, draft: Draft, split: Split, seed: int, position: int) -> Problem:
        return Problem(
            id=f"{self.name}/{split}/{draft.family}/{seed}-{position}",
            domain=self.name,
            messages=(Message("user", draft.prompt),),
            reference=draft.reference,
            tools=draft.tools,
            thinking=self.is_thinking(),
            metadata={"family": draft.family},
        )

    def _drafts(self, split: Split, seed: int, start: int) -> Iterator[Draft]:
        """Positions `start`, `start + 1`, ... of a split; held-out problems are all distinct."""
        seen: set[str] = set()
        for position in itertools.count(0 if split == "heldout" else start):
            rng = random.Random(f"{self.name}/{split}/{seed}/{position}")
            draft = self._draw(split, rng, seen)
            if split == "heldout":
                seen.add(draft.content)
            if position >= start:
                yield draft

    def _draw(self, split: Split, rng: random.Random, seen: set[str]) -> Draft:
        # the first family is the position's own; the others stand in once it has no more to give
        families = self._families()
        for family in rng.sample(families, len(families)):
            for _ in range(MAX_DRAWS):
                draft = family(rng)
                if split_of(draft.content) != split or draft.content in seen:
                    continue
                if draft.is_fit is None or draft.is_fit():
                    return draft
        raise InputError(
            f"curriculum {self.name!r} at levels {', '.join(self._levels)} has no more than "
            f"{len(seen)} distinct {split} problems with this seed; ask for fewer."
        )
