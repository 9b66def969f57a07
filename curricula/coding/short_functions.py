"""Functions of one short line for the level `tiny`: what a model of a million parameters can read.

One failing call is enough to tell what is right: numbers are small, and names are few.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping

from curricula.coding.functions import NAMES, Function

SHORT_NAMES: tuple[str, ...] = NAMES[::4]
"""few, so that copying them is learned soon"""
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def short_operator(name: str, rng: random.Random) -> Function:
    """`a - b` in place of `a + b`."""
    right, wrong = rng.sample(list(_OPERATORS), 2)
    return Function(
        name=name,
        parameters="a, b",
        text=_function(name, "a, b", f"a {right} b"),
        fix=f"a {right} b",
        bug=f"a {wrong} b",
        right=_OPERATORS[right],
        wrong=_OPERATORS[wrong],
        # with 2 and 2, sum and product are equal
        draw=lambda rng: [rng.randint(3, 9), rng.randint(2, 9)],
    )


def short_off_by_one(name: str, rng: random.Random) -> Function:
    """`n + 3` in place of `n + 2`."""
    right = rng.randint(1, 5)
    wrong = right + rng.choice((-1, 1))
    return Function(
        name=name,
        parameters="n",
        text=_function(name, "n", f"n + {right}"),
        fix=f"n + {right}",
        bug=f"n + {wrong}",
        right=lambda n: n + right,
        wrong=lambda n: n + wrong,
        draw=_digit,
    )


def short_branch(name: str, rng: random.Random) -> Function:
    """`n` in place of `max(n, 3)`."""
    bound = rng.randint(3, 7)
    call, right = rng.choice((("max", max), ("min", min)))
    return Function(
        name=name,
        parameters="n",
        text=_function(name, "n", f"{call}(n, {bound})"),
        fix=f"return {call}(n, {bound})",
        bug="return n",
        right=lambda n: right(n, bound),
        wrong=lambda n: n,
        draw=_digit,
    )


def short_key(name: str, rng: random.Random) -> Function:
    """`row["cat"]` in place of `row["dog"]`."""
    right, wrong = keys = rng.sample(SHORT_NAMES, 2)
    return Function(
        name=name,
        parameters="row",
        text=_function(name, "row", f'row["{right}"]'),
        fix=f'row["{right}"]',
        bug=f'row["{wrong}"]',
        right=lambda row: row[right],
        wrong=lambda row: row[wrong],
        draw=lambda rng: [dict(zip(sorted(keys), rng.sample(range(1, 10), 2), strict=True))],
    )


def _digit(rng: random.Random) -> list[int]:
    return [rng.randint(1, 9)]


def _function(name: str, parameters: str, value: str) -> str:
    return f"def {name}({parameters}):\n    return {value}\n"
