"""The `needle` curriculum: a fact is hidden in filler text of a wanted length, and asked for behind
it.

    hat toy the code of fox is 4821. pin mud ... What is the code of fox? ...   ->   4821
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from curricula.procedural import Draft, Family, Procedural, check_count
from curricula.vocabulary import LEXICON
from engines.types import Message, Problem, Split

THIRDS = ("begin", "middle", "end")
"""families: the third of the text in which the fact is"""


def needle(third: str, *, other_facts: int, of_digits: bool) -> Callable[[random.Random], Draft]:
    """Return a word or four digits, among codes of other names. The draft's prompt lists the facts,
    the one that is asked for first, and then the question."""

    def draw(rng: random.Random) -> Draft:
        names = rng.sample(LEXICON, 1 + other_facts)
        codes = [str(rng.randint(1000, 9999)) if of_digits else rng.choice(LEXICON) for _ in names]
        facts = [f"the code of {name} is {code}." for name, code in zip(names, codes, strict=True)]
        question = f"What is the code of {names[0]}? Say the code alone."
        return Draft(
            family=third,
            prompt="\n".join([*facts, question]),
            content=f"{names[0]} {codes[0]}",
            reference={"answer": codes[0]},
            plan=(Message("assistant", codes[0]),),
        )

    return draw


def hidden(draft: Draft, words: int, rng: random.Random) -> str:
    """The facts in so many words of filler, and the question behind them."""
    asked, *others, question = draft.prompt.split("\n")
    depth = (THIRDS.index(draft.family) + rng.random()) / len(THIRDS)
    placed = [(int(depth * words), asked)]
    placed += [(rng.randint(0, words), other) for other in others]
    text = rng.choices(LEXICON, k=words)
    for place, fact in sorted(placed, reverse=True):
        text.insert(place, fact)
    return f"{' '.join(text)}\n{question}"


def _level(*, other_facts: int, of_digits: bool) -> Sequence[Family]:
    return [needle(third, other_facts=other_facts, of_digits=of_digits) for third in THIRDS]


class Needle(Procedural):
    """Levels: easy (one fact, a word), medium (four digits), hard (among eight other facts)."""

    name: ClassVar[str] = "needle"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": _level(other_facts=0, of_digits=False),
        "medium": _level(other_facts=0, of_digits=True),
        "hard": _level(other_facts=8, of_digits=True),
    }

    def __init__(
        self, *, levels: Sequence[str] = ("easy",), noise: float = 0.0, words: int = 200
    ) -> None:
        """`words`: of the filler, each a token or two."""
        super().__init__(levels=levels, noise=noise)
        self._words = check_count("words", words)

    def _problem(self, draft: Draft, split: Split, seed: int, position: int) -> Problem:
        rng = random.Random(f"{self.name}/filler/{split}/{seed}/{position}")
        asked = Message("user", hidden(draft, self._words, rng))
        return replace(super()._problem(draft, split, seed, position), messages=(asked,))
