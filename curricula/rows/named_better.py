"""Two answers of a row, and the column that says which of them is better."""

from __future__ import annotations

import re
from typing import Any

from curricula.rows.fields import Fields
from curricula.rows.meaning import TIES
from curricula.rows.pair_columns import PairColumns
from curricula.rows.ranked import number_of
from infra.data_files.rows import BadRow, Reason

_MARKS = ("012", "123", "abc", "ABC")
"""of the first answer, of the second, and of a third that would go unread"""
_STEMS = ("response", "answer", "completion", "output", "conversation")
_SIDES = tuple(
    tuple(f"{stem}{sign}{mark}" for mark in marks)
    for stem in _STEMS
    for sign in ("_", "")
    for marks in _MARKS
)
_BETTER = ("winner", "preference", "preferred", "better", "better_response_id")
_VAGUE = ("choice", "label", "chosen")
"""what may say it too, where none of the others does"""
_STRENGTH = ("overall_preference", "preference_strength")
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ORDER = ("first", "second")


def usual_sides(row: Fields) -> tuple[str, str] | None:
    """Return the columns of two answers. Raises BadRow where there is a third."""
    for first, second, third in _SIDES:
        if row.has(first) and row.has(second):
            if row.has(third):
                raise BadRow(
                    Reason.COLUMNS,
                    f"has `{first}`, `{second}` and `{third}`, and two are compared; name them:"
                    " columns.first and columns.second",
                )
            return first, second
    return None


def find_sides(row: Fields, columns: PairColumns) -> tuple[str, str]:
    """Return the columns of two answers, as they are named or usual. Raises BadRow."""
    if columns.first:
        return columns.first, columns.second
    if sides := usual_sides(row):
        return sides
    raise BadRow(
        Reason.COLUMNS,
        "has no two answers such as `response_a` and `response_b`; name them: columns.first and"
        " columns.second",
    )


def read_choice(
    row: Fields, sides: tuple[str, str], columns: PairColumns
) -> tuple[tuple[tuple[int, int, float]], bool]:
    """Return which of two answers is better, and by how much; and whether a column says that.
    Raises BadRow, for a tie too."""
    name, is_strength = _deciding(row, columns)
    value = row.column(name)
    if is_strength:
        strength = number_of(value, name)
        if not strength:
            raise BadRow(Reason.UNDECIDED, f"{name}: 0, so no answer is better")
        return ((0, 1, -strength) if strength < 0 else (1, 0, strength),), True
    place = _place_of(value, name, sides, columns)
    return ((place, 1 - place, 0.0),), False


def _deciding(row: Fields, columns: PairColumns) -> tuple[str, bool]:
    """Return the column that says which answer is better, and whether by a number below or above
    0."""
    if name := columns.better or columns.strength:
        return name, not columns.better
    found = [*filter(row.has, (*_BETTER, *_STRENGTH))] or [*filter(row.has, _VAGUE)]
    if columns.first_is:
        found = [name for name in found if name not in _STRENGTH]
    if len(found) == 1:
        return found[0], found[0] in _STRENGTH
    has = " and ".join(f"`{name}`" for name in found)
    fault = f"has {has}, of which one decides" if found else "nothing says which answer is better"
    raise BadRow(
        Reason.COLUMNS,
        f"{fault}; name it: columns.better, or columns.strength for numbers below and above 0",
    )


def _place_of(value: Any, name: str, sides: tuple[str, str], columns: PairColumns) -> int:
    """Return 0 or 1 for the answer that a value names. Raises BadRow."""
    said = str(value).strip().lower().removesuffix(".0")
    if columns.first_is:
        named = [columns.first_is, columns.second_is]
        if said in (known := [each.strip().lower().removesuffix(".0") for each in named]):
            return known.index(said)
    words = {*_words(said)} if value is not None else set[str]()
    if not words.isdisjoint(TIES) or words == {"bothbad"}:
        raise BadRow(Reason.UNDECIDED, f"{name} {said:.40}: no answer is better")
    if not columns.first_is:
        if said in (known := [each.lower() for each in sides]):
            return known.index(said)
        for marks in (_differing(*sides), _ORDER):
            if sum(mark in words for mark in marks) == 1:
                return int(marks[1] in words)
    raise BadRow(
        Reason.COLUMNS,
        f"{name}: {value!r:.40} does not say which of `{sides[0]}` and `{sides[1]}` is better;"
        " write what it says of each into columns.first_is and columns.second_is",
    )


def _differing(first: str, second: str) -> tuple[str, ...]:
    """Return the words or numbers by which two names differ, e.g. `a` and `b` of `answer_a` and
    `answer_b`; none where they differ by more."""
    one, other = _words(first), _words(second)
    apart = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
    return apart[0] if len(apart) == 1 and len(one) == len(other) else ()


def _words(text: str) -> list[str]:
    return [each.lower() for each in _WORD.findall(text)]
