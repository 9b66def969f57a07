"""The `reasoning` curriculum: graded arithmetic, solved in steps, answered in a box."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from curricula.procedural import Draft, Family, Procedural, check_flag
from curricula.vocabulary import COUNTED_LETTERS
from engines.types import Message, Problem


def addition(num_digits: int) -> Callable[[random.Random], Draft]:
    """`12+30` -> `2+0=2,1+3+0=4` -> 42: column by column, carrying."""

    def draw(rng: random.Random) -> Draft:
        a, b = (rng.randint(10 ** (num_digits - 1), 10**num_digits - 1) for _ in range(2))
        steps, carry = [], 0
        for column in range(num_digits):
            x, y = (n // 10**column % 10 for n in (a, b))
            total = x + y + carry
            # the first column has no carry to show
            steps.append(f"{x}+{y}{f'+{carry}' if column else ''}={total}")
            carry = total // 10
        return _draft("add", f"{a}+{b}", f"add {_sorted(a, b)}", steps, a + b)

    return draw


def maximum(count: int) -> Callable[[random.Random], Draft]:
    """`max 12 30 44` -> `12<30,30<44` -> 44: the best so far against the next."""

    def draw(rng: random.Random) -> Draft:
        numbers = [rng.randint(10, 99) for _ in range(count)]
        best, steps = numbers[0], []
        for number in numbers[1:]:
            sign = "<" if number > best else ">" if number < best else "="
            steps.append(f"{best}{sign}{number}")
            best = max(best, number)
        return _draft("max", f"max {_joined(numbers)}", f"max {_sorted(*numbers)}", steps, best)

    return draw


def counting(shortest: int, longest: int) -> Callable[[random.Random], Draft]:
    """`count X in XYX` -> `X1Y1X2` -> 2: letter by letter with the count so far."""

    def draw(rng: random.Random) -> Draft:
        text = "".join(rng.choice(COUNTED_LETTERS) for _ in range(rng.randint(shortest, longest)))
        letter = rng.choice(COUNTED_LETTERS)
        trail = "".join(f"{c}{text[: i + 1].count(letter)}" for i, c in enumerate(text))
        prompt = f"count {letter} in {text}"
        return _draft("count", prompt, prompt, [trail], text.count(letter))

    return draw


def chain(rng: random.Random) -> Draft:
    """`52+30-7` -> `52+30=82,82-7=75` -> 75: from left to right."""
    a, b, c = rng.randint(10, 99), rng.randint(10, 99), rng.randint(10, 99)
    total = a + b
    steps = [f"{a}+{b}={total}", f"{total}-{c}={total - c}"]
    return _draft("chain", f"{a}+{b}-{c}", f"chain {_sorted(a, b)} {c}", steps, total - c)


def product(rng: random.Random) -> Draft:
    """`34*7` -> `4*7=28,3*7+2=23` -> 238: digit by digit, carrying."""
    a, b = rng.randint(10, 99), rng.randint(2, 9)
    low = a % 10 * b
    high = a // 10 * b + low // 10
    steps = [f"{a % 10}*{b}={low}", f"{a // 10}*{b}+{low // 10}={high}"]
    return _draft("product", f"{a}*{b}", f"product {a} {b}", steps, a * b)


def _draft(family: str, prompt: str, content: str, steps: Sequence[str], answer: int) -> Draft:
    turn = Message("assistant", f"\\boxed{{{answer}}}", reasoning=",".join(steps))
    return Draft(family, prompt, content, {"answer": str(answer)}, (turn,))


def _sorted(*numbers: int) -> str:
    """One name for problems that differ only in the order of their numbers."""
    return _joined(sorted(numbers))


def _joined(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


class Reasoning(Procedural):
    """Levels: easy (learnable by a model of 600k parameters), medium, hard."""

    name: ClassVar[str] = "reasoning"
    levels: ClassVar[Mapping[str, Sequence[Family]]] = {
        "easy": (addition(2), maximum(3), counting(4, 7)),
        "medium": (addition(3), maximum(5), counting(8, 10)),
        "hard": (chain, product, addition(4), counting(12, 16)),
    }

    def __init__(
        self, *, levels: Sequence[str] = ("easy",), noise: float = 0.0, thinking: bool = True
    ) -> None:
        """With `thinking` the steps are in the reasoning; without it there is only the box."""
        super().__init__(levels=levels, noise=noise)
        self._thinking = check_flag("thinking", thinking)

    def is_thinking(self) -> bool:
        return self._thinking

    def play(self, problem: Problem, plan: Sequence[Message]) -> tuple[Message, ...]:
        if self._thinking:
            return tuple(plan)
        return tuple(replace(turn, reasoning=None) for turn in plan)
