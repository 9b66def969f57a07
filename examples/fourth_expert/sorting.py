"""A fourth expert in one file: its problems, its demonstrator and its judge.

The recipe beside it names both by dotted path. Nothing of Tributary changes: the file travels with
every job, and its content enters the digests of the stages that it takes part in.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from itertools import count as count_from
from itertools import islice, pairwise

from engines.types import Demonstration, Environment, Message, Problem, Split, Transcript, Verdict

LETTERS = "abcdefghij"
MAX_DRAWS = 10_000
# A word's checksum says which split it belongs to, so that no problem is in two of them.
SPLITS: dict[Split, range] = {
    "heldout": range(1),
    "sft": range(1, 3),
    "rl": range(3, 6),
    "distill": range(6, 8),
}


class Sorting:
    """`sort dacb` -> `abcd`, for words of `length` letters."""

    def __init__(self, length: int = 4, noise: float = 0.0) -> None:
        """`noise` is the share of demonstrations that leave a letter out."""
        self._length, self._noise = length, noise

    def environment(self) -> Environment | None:
        return None

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        words = islice(self._words(split, seed, start), count)
        return [self._problem(word, split, seed, start + i) for i, word in enumerate(words)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        return [self._demonstrate(p, seed) for p in self.problems("sft", count, seed)]

    def _words(self, split: Split, seed: int, start: int) -> Iterator[str]:
        """The split's words from a position on; held-out ones are all distinct."""
        seen: set[str] = set()
        for position in count_from(0 if split == "heldout" else start):
            word = self._draw(split, random.Random(f"sorting/{split}/{seed}/{position}"), seen)
            if split == "heldout":
                seen.add(word)
            if position >= start:
                yield word

    def _draw(self, split: Split, rng: random.Random, seen: set[str]) -> str:
        for _ in range(MAX_DRAWS):
            word = "".join(rng.choice(LETTERS) for _ in range(self._length))
            if zlib.crc32(word.encode()) % 8 in SPLITS[split] and word not in seen:
                return word
        raise ValueError(f"no more than {len(seen)} distinct {split} words of {self._length}")

    def _problem(self, word: str, split: Split, seed: int, position: int) -> Problem:
        return Problem(
            id=f"sorting/{split}/{seed}/{position}",
            domain="sorting",
            messages=(Message("user", f"sort {word}"),),
            reference="".join(sorted(word)),
        )

    def _demonstrate(self, problem: Problem, seed: int) -> Demonstration:
        answer, rng = str(problem.reference), random.Random(f"{problem.id}/{seed}")
        if rng.random() < self._noise:
            drop = rng.randrange(len(answer))
            answer = answer[:drop] + answer[drop + 1 :]
        return Demonstration(problem, (Message("assistant", answer),))


class SortedExactly:
    """1 for the sorted word, else 0."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        right = transcript.answer.strip() == transcript.problem.reference
        return Verdict(float(right), reason="" if right else f"not {transcript.problem.reference}")


class InOrder:
    """From 0 to 1: the share of neighbouring letters that stand in order; shapes training only."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        answer = transcript.answer.strip()
        pairs = list(pairwise(answer))
        return Verdict(sum(a <= b for a, b in pairs) / len(pairs) if pairs else 0.0)
