"""Small Python functions, each with one bug: a body of some lines, or one expression.

A bug is one of five kinds. What a function should return is computed here, in Python of our own,
never by running its text.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from curricula.vocabulary import LEXICON

NAMES: tuple[str, ...] = tuple(
    word
    for word in LEXICON
    if not hasattr(builtins, word)
    and not keyword.iskeyword(word)
    and word not in sys.stdlib_module_names
)
"""for modules, functions and keys: what Python does not use itself"""
HIDDEN_CALLS = 6
"""of a function, beside those of its tests"""
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_MOST_DRAWS = 500
SHORT_NAMES: tuple[str, ...] = NAMES[::4]
"""few, so that copying them is learned soon"""


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a module.

    `bug` is the text that stands in place of `fix` where it is broken.
    """

    name: str
    parameters: str
    text: str
    """right"""
    fix: str
    bug: str
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    draw: Callable[[random.Random], list[Any]]
    """arguments of a call"""
    imports: str = ""
    """a line that its module starts with"""
    others: tuple[Callable[..., Any], ...] = ()
    """more that a test must tell from the right one: what else a reader might take it for"""

    @property
    def broken(self) -> str:
        return self.text.replace(self.fix, self.bug)

    def calls(self, rng: random.Random) -> tuple[list[list[Any]], list[list[Any]]]:
        """Arguments of calls for its tests, and of others. Those of its tests tell the right
        function from the wrong one and from `others`; so do the other ones."""
        shown = self._telling(rng, [])
        hidden = self._telling(rng, shown)
        for _ in range(_MOST_DRAWS):
            if len(hidden) >= HIDDEN_CALLS:
                break
            arguments = self.draw(rng)
            if arguments not in [*shown, *hidden]:
                hidden.append(arguments)
        return shown, hidden

    def _telling(self, rng: random.Random, known: list[list[Any]]) -> list[list[Any]]:
        chosen: list[list[Any]] = []
        for false in (self.wrong, *self.others):
            if any(_value(false, call) != _value(self.right, call) for call in chosen):
                continue
            for _ in range(_MOST_DRAWS):
                call = self.draw(rng)
                differs = _value(false, call) != _value(self.right, call)
                if differs and call not in [*chosen, *known]:
                    chosen.append(call)
                    break
        return chosen


def wrong_operator(name: str, rng: random.Random) -> Function:
    right, wrong = rng.sample(list(_OPERATORS), 2)
    return Function(
        name=name,
        parameters="a, b",
        text=_function(name, "a, b", f"return a {right} b"),
        fix=f"return a {right} b",
        bug=f"return a {wrong} b",
        right=_OPERATORS[right],
        wrong=_OPERATORS[wrong],
        draw=lambda rng: [rng.randint(2, 30), rng.randint(2, 9)],
        others=tuple(call for sign, call in _OPERATORS.items() if sign not in (right, wrong)),
    )


def off_by_one(name: str, rng: random.Random) -> Function:
    forms: tuple[tuple[str, str, str, Callable[..., Any], Callable[..., Any]], ...] = (
        ("n", "return sum(range(n + 1))", "return sum(range(n))", _sum_to, _sum_below),
        ("n", "return list(range(n))", "return list(range(n - 1))", _below, _below_less),
        ("a, n", "return a[:n]", "return a[:n - 1]", _first, _first_less),
        ("a, n", "return a[n - 1]", "return a[n - 2]", _nth, _nth_less),
        ("a, n", "return len(a) - n", "return len(a) - n - 1", _left, _left_less),
    )
    parameters, fix, bug, right, wrong = rng.choice(forms)

    def draw(rng: random.Random) -> list[Any]:
        if parameters == "n":
            return [rng.randint(2, 12)]
        items = [rng.randint(1, 99) for _ in range(rng.randint(4, 8))]
        return [items, rng.randint(2, 4)]

    return Function(
        name, parameters, _function(name, parameters, fix), fix, bug, right, wrong, draw
    )


def missing_branch(name: str, rng: random.Random) -> Function:
    low, high = rng.randint(2, 9), rng.randint(11, 30)
    head, last = f"def {name}(n):\n", "    return n\n"
    raised = f"    if n < {low}:\n        return {low}\n"
    lowered = f"    if n > {high}:\n        return {high}\n"
    lacks_first = rng.random() < 0.5
    return Function(
        name=name,
        parameters="n",
        text=head + raised + lowered + last,
        fix=head + raised if lacks_first else lowered + last,
        bug=head if lacks_first else last,
        right=lambda n: min(max(n, low), high),
        wrong=(lambda n: min(n, high)) if lacks_first else (lambda n: max(n, low)),
        draw=lambda rng: [rng.randint(-5, 45)],
    )


def wrong_key(name: str, rng: random.Random) -> Function:
    first, second, other = rng.sample(NAMES, 3)
    keys = (first, second, other)
    return Function(
        name=name,
        parameters="row",
        text=_function(name, "row", f'return row["{first}"] * row["{second}"]'),
        fix=f'row["{second}"]',
        bug=f'row["{other}"]',
        right=lambda row: row[first] * row[second],
        wrong=lambda row: row[first] * row[other],
        draw=lambda rng: [{key: rng.randint(2, 30) for key in sorted(keys)}],
    )


def swapped_arguments(name: str, called: str, module: str, rng: random.Random) -> Function:
    """Return a function that hands its arguments to `called`, which subtracts, of another
    module."""
    return Function(
        name=name,
        parameters="a, b",
        text=_function(name, "a, b", f"return {called}(a, b)"),
        fix=f"{called}(a, b)",
        bug=f"{called}(b, a)",
        right=operator.sub,
        wrong=lambda a, b: b - a,
        draw=lambda rng: [rng.randint(2, 30), rng.randint(2, 30)],
        imports=f"from {module} import {called}\n",
    )


def passed_on(name: str, called: Function, module: str) -> Function:
    """Return a function that returns what `called` of another module returns."""
    line = f"return {called.name}({called.parameters})"
    return replace(
        called,
        name=name,
        text=_function(name, called.parameters, line),
        imports=f"from {module} import {called.name}\n",
    )


def subtraction(name: str) -> Function:
    """Make the function that `swapped_arguments` calls; its own bug is never asked for."""
    return Function(
        name=name,
        parameters="a, b",
        text=_function(name, "a, b", "return a - b"),
        fix="return a - b",
        bug="return a + b",
        right=operator.sub,
        wrong=operator.add,
        draw=lambda rng: [rng.randint(2, 30), rng.randint(2, 9)],
    )


def _function(name: str, parameters: str, line: str) -> str:
    return f"def {name}({parameters}):\n    {line}\n"


def _value(call: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return call(*arguments)
    except (ArithmeticError, LookupError) as error:
        return type(error).__name__


def _sum_to(n: int) -> int:
    return sum(range(n + 1))


def _sum_below(n: int) -> int:
    return sum(range(n))


def _below(n: int) -> list[int]:
    return list(range(n))


def _below_less(n: int) -> list[int]:
    return list(range(n - 1))


def _first(a: list[int], n: int) -> list[int]:
    return a[:n]


def _first_less(a: list[int], n: int) -> list[int]:
    return a[: n - 1]


def _nth(a: list[int], n: int) -> int:
    return a[n - 1]


def _nth_less(a: list[int], n: int) -> int:
    return a[n - 2]


def _left(a: list[int], n: int) -> int:
    return len(a) - n


def _left_less(a: list[int], n: int) -> int:
    return len(a) - n - 1


_SHORT_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def short_operator(name: str, rng: random.Random) -> Function:
    """`a - b` in place of `a + b`."""
    right, wrong = rng.sample(list(_SHORT_OPERATORS), 2)
    return Function(
        name=name,
        parameters="a, b",
        text=_short_function(name, "a, b", f"a {right} b"),
        fix=f"a {right} b",
        bug=f"a {wrong} b",
        right=_SHORT_OPERATORS[right],
        wrong=_SHORT_OPERATORS[wrong],
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
        text=_short_function(name, "n", f"n + {right}"),
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
        text=_short_function(name, "n", f"{call}(n, {bound})"),
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
        text=_short_function(name, "row", f'row["{right}"]'),
        fix=f'row["{right}"]',
        bug=f'row["{wrong}"]',
        right=lambda row: row[right],
        wrong=lambda row: row[wrong],
        draw=lambda rng: [dict(zip(sorted(keys), rng.sample(range(1, 10), 2), strict=True))],
    )


def _digit(rng: random.Random) -> list[int]:
    return [rng.randint(1, 9)]


def _short_function(name: str, parameters: str, value: str) -> str:
    return f"def {name}({parameters}):\n    return {value}\n"
