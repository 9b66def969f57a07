"""A right hook: Roman numerals, `roman 14` -> `XIV`. Each case changes one thing."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

from engines.types import (
    Demonstration,
    Environment,
    Message,
    Problem,
    Split,
    Transcript,
    Verdict,
)

SPLITS: dict[Split, tuple[int, ...]] = {
    "heldout": (0,),
    "sft": (1, 2),
    "rl": (3, 4, 5),
    "distill": (6, 7),
}
VALUES = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
SIGNS = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")


def roman(number: int) -> str:
    text = ""
    for value, sign in zip(VALUES, SIGNS, strict=True):
        text += sign * (number // value)
        number %= value
    return text


class Numerals:
    """Numbers below `top`; `noise` is the share of demonstrations that lack their last sign."""

    def __init__(self, top: int = 2000, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"`noise` is a share from 0 to 1, not {noise}")
        self.noise = noise
        self.numbers: dict[Split, list[int]] = {
            split: [n for n in range(1, top) if zlib.crc32(str(n).encode()) % 8 in buckets]
            for split, buckets in SPLITS.items()
        }

    def environment(self) -> Environment | None:
        return None

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        return [self._problem(split, seed, position) for position in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        shown: list[Demonstration] = []
        for problem in self.problems("sft", count, seed):
            answer = str(problem.reference)
            errs = random.Random(problem.id).random() < self.noise
            turn = Message("assistant", answer[:-1] if errs else answer)
            shown.append(Demonstration(problem, (turn,)))
        return shown

    def _problem(self, split: Split, seed: int, position: int) -> Problem:
        numbers = self.numbers[split]
        epoch, place = divmod(position, len(numbers))
        number = random.Random(f"{split}/{seed}/{epoch}").sample(numbers, len(numbers))[place]
        return Problem(
            id=f"roman/{split}/{seed}/{position}",
            domain="roman",
            messages=(Message("user", f"roman {number}"),),
            reference=roman(number),
        )


class Exact:
    async def __call__(self, transcript: Transcript) -> Verdict:
        return Verdict(float(transcript.answer.strip() == transcript.problem.reference))


async def letters(transcript: Transcript) -> Verdict:
    """Share of places that hold the right sign."""
    said, right = transcript.answer.strip(), str(transcript.problem.reference)
    same = sum(a == b for a, b in zip(said, right, strict=False))
    return Verdict(same / max(len(said), len(right), 1))
