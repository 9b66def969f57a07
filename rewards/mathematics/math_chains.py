r"""Numbers that stand at the end of something: of `x = \frac{10}{2} = 5`, of `The area is 5`."""

from __future__ import annotations

import re

from rewards.mathematics.math_numbers import Number, is_rounding, read_number, same_number
from rewards.mathematics.math_parts import (
    RELATION,
    is_name,
    labelled,
    listed,
    may_have_value,
    sides,
)
from rewards.mathematics.math_writing import tight

_DENIED = re.compile(
    r"\\(?:implies|Rightarrow|Longrightarrow|to|rightarrow|iff)(?![a-z])|\b(?:when|if|for|or|and|then)\b"
)
"""what makes of an answer several, or one under a condition"""
_GROUPED = re.compile(r"\\?[{(\[](.*?)\\?[})\]]")


def says_number(gold: Number, answer: str) -> bool:
    """Return whether an answer says this number, and no other one."""
    said = read_number(answer)
    if said is not None:
        return same_number(gold, said)
    if len(listed(answer)) > 1 or RELATION.search(answer):
        return False
    said = read_number(labelled(answer))
    if said is not None:
        return same_number(gold, said)
    return not _DENIED.search(answer) and _is_chain_to(gold, answer)


def _is_chain_to(gold: Number, answer: str) -> bool:
    """Return whether it says the number, and no other: `x=\\frac{10}{2}=5`, but not `x=6=5`."""
    exact, *rounded = (tight(part) for part in answer.split(r"\approx"))
    if rounded and not any(map(_number_in, sides(exact))):
        exact, rounded = (f"{exact}={rounded[0]}" if len(rounded) == 1 else ""), []
    parts = [part for part in map(tight, sides(exact)) if part]
    if len(parts) < 2 and not rounded:
        return False
    if len(parts) > 1 and is_name(parts[-1]):
        parts = [parts[-1], *parts[:-1]]
    if not parts or not may_have_value(parts[0]):
        return False
    if any(
        re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", part)) and _number_in(part) is None
        for part in parts[1:]
    ):
        return False
    if not all(_is_rounding_of(gold, part) for part in rounded):
        return False
    last = read_number(parts[-1])
    numbers = [each for each in map(_number_in, parts) if each]
    agree = all(each.value == gold.value or same_number(gold, each) for each in numbers)
    return last is not None and same_number(gold, last) and agree


def _is_rounding_of(gold: Number, text: str) -> bool:
    shown = read_number(text)
    digits = 0 if shown is None else shown.digits or len(str(abs(int(shown.value))))
    return shown is not None and is_rounding(gold.value - shown.value, shown.value, digits)


def _number_in(text: str) -> Number | None:
    """Return the number that a part is, also in brackets."""
    inner = _GROUPED.fullmatch(text)
    return read_number(tight(inner[1] if inner else text))
