"""Answers that are no mathematics: letters of a choice, words, names, dates, times, sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from rewards.mathematics.math_numbers import read_number, read_unit
from rewards.mathematics.math_writing import unmarked

_TEXT_OF_CHOICE = r"[\d.¤]|-\d|\\(?:frac|sqrt|pi)\b"
_CHOICE = re.compile(
    rf"\(?([A-Z])\)?|\(([A-J])\)\s*((?:{_TEXT_OF_CHOICE}|(?!(?:and|or)\b)[A-Za-z]{{2}}).*)"
    rf"|([A-J])[.)] ?((?:{_TEXT_OF_CHOICE}|[A-Z][a-z]).*)"  # but `E. coli` is a name
)
_CHOSEN = re.compile(
    r"(?:(?i:(?:the )?(?:correct |right )?(?:option|choice|answer)(?: is)?) ?:? ?)?"
    r"[(\[]?([A-Z])(?:[)\]]?$|\)|[.:] ?)"
)
_OTHER = re.compile(r"(?<![A-Za-z0-9])(?:A(?! [a-z])|[B-H])(?![A-Za-z0-9'])")
"""a letter by itself behind the choice; `A dog` has an article"""
_DENIED = re.compile(
    r"not$|(?:is|must be|cannot be|can't be)\b.*\b(?:not|false|wrong|incorrect|impossible|excluded)"
    r"\b|(?:isn't|incorrect|wrong|impossible|excluded)\b|cannot be$"
)
_SEVERAL = re.compile(r"(?i)(?:both .* and|neither .* nor|all of|none of|each of)\b")
"""a choice that is about others, as `D. Both A and B`"""
DATE = re.compile(r"^\d+(?:-\d+|(?:[-/.]\d+){2,})$")
"""or a range, such as `3-5`"""
_WORD = re.compile(r"(?:(?<!\d)[+-] ?(?=\d))?(?:\d+(?:[.:/-]\d+)+|[^\W_]+)%?")
"""also a number with its sign and all its digits, a date or a time"""

_PARTS: Mapping[str, tuple[str, int]] = {
    "s": ("time", 1), "min": ("time", 60), "h": ("time", 3600), "day": ("time", 86_400),
    "week": ("time", 604_800), "month": ("age", 1), "yr": ("age", 12), "in": ("length", 1),
    "ft": ("length", 12), "yd": ("length", 36), "mi": ("length", 63_360), "oz": ("weight", 1),
    "lb": ("weight", 16), "mm": ("metre", 1), "cm": ("metre", 10), "m": ("metre", 1000),
    "km": ("metre", 1_000_000), "g": ("gram", 1), "kg": ("gram", 1000), "cent": ("money", 1),
    "¤": ("money", 100),
}  # fmt: skip
"""units that are written one behind the other: what they measure, and how much of it"""
_PART = re.compile(r"(?:,|\band\b|\s)*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\.?\s*")
_SIZES = re.compile(
    r"(\d+(?:\.\d+)?)((?:\\times(?:10(?!\^)|(?!10\^)\d+(?:\.\d+)?))+)(?![\^\d.])(.*)"
)


class Choice(NamedTuple):
    """A letter, and what it stands for, where that is said. Example: `(B) 12`"""

    letter: str
    text: str


def choice_of(gold: str) -> Choice | None:
    """Return the choice; None where a reference is no choice."""
    found = _CHOICE.fullmatch(unmarked(gold))
    if not found:
        return None
    return Choice(found[1] or found[2] or found[4], found[3] or found[5] or "")


def chosen_in(answer: str) -> Choice | None:
    """Return what an answer chooses, no letter for several; None where it begins with no letter."""
    answer = unmarked(answer)
    found = _CHOSEN.match(answer)
    if not found:
        return None
    text, letter = answer[found.end() :].strip(), found[1]
    others = {other[0] for other in _OTHER.finditer(text)}
    is_about_others = _SEVERAL.match(text) and letter not in others and ")" not in text
    is_clear = (not others - {letter} or is_about_others) and not _DENIED.match(text)
    return Choice(letter if is_clear else "", text)


def same_words(gold: str, answer: str) -> bool:
    """Return whether they say the same in words, dates and times: case and full stops do not
    count."""
    words = _words(gold)
    return bool(words) and words == _words(answer)


def _words(text: str) -> list[str]:
    """Empty where it is no text."""
    text = unmarked(text)
    says = rf"[A-Za-z]{{3}}|\d:\d|(?i:^no$)|{DATE.pattern}"
    if re.search(r"[\\^_{}=<>+*|¤!?]|--|-\s*\(", text) or not re.search(says, text):
        return []
    text = re.sub(r"(?<=\b[A-Za-z])\.|(?<=\d),(?=\d{3}(?!\d))", "", text).casefold()
    return [re.sub(r"(?<![\d.])0+(?=\d)", "", word) for word in _WORD.findall(text)]


def same_measure(gold: str, answer: str) -> bool:
    """Return whether they measure the same, where several units stand side by side in one of them:
    `3 hr 20 min` is 200 minutes."""
    wanted, said = _measured(gold), _measured(answer)
    if wanted is None or said is None or (wanted.parts, said.parts) == (1, 1):
        return False
    return wanted[:2] == said[:2]


class Measure(NamedTuple):
    """Example: Measure("time", Fraction(12000), 2), of `3 hr 20 min`"""

    kind: str
    size: Fraction
    parts: int


def _measured(text: str) -> Measure | None:
    text, at, found = unmarked(text), 0, list[tuple[str, Fraction]]()
    number = read_number(text)
    if number is not None:
        part = _PARTS.get(number.unit)
        return Measure(part[0], number.value * part[1], 1) if part else None
    while at < len(text):
        part = _PART.match(text, at)
        unit = read_unit(part[2]) if part else None
        if part is None or unit is None or unit[0] not in _PARTS:
            return None
        kind, size = _PARTS[unit[0]]
        found.append((kind, Fraction(part[1]) * unit[1] * size))
        at = part.end()
    kinds = {kind for kind, _ in found}
    size = sum((size for _, size in found), Fraction(0))
    return Measure(kinds.pop(), size, len(found)) if len(kinds) == 1 else None


def same_sizes(gold: str, answer: str) -> bool | None:
    """Return whether they are the same lengths of sides, in their order, as of a `3\\times4`
    matrix; None where one is no such thing."""
    wanted, said = _SIZES.fullmatch(unmarked(gold)), _SIZES.fullmatch(unmarked(answer))
    if not wanted or not said:
        return None
    is_told = bool(wanted[3].strip() and said[3].strip())
    units = [read_unit(each[3]) for each in (wanted, said)]
    return wanted.group(1, 2) == said.group(1, 2) and (not is_told or units[0] == units[1])
