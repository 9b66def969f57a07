"""Answers that are no mathematics: letters of a choice, words, names, dates and times."""

from __future__ import annotations

import re
from typing import NamedTuple

from rewards.math_writing import unmarked

_CHOICE = re.compile(
    r"\(?([A-Z])\)?|\(([A-J])\)\s*((?:[\d.¤]|-\d|\\(?:frac|sqrt|pi)\b|(?!(?:and|or)\b)[A-Za-z]{2}).*)"
)
_CHOSEN = re.compile(r"(?:(?i:option|choice|answer) ?)?\(?([A-Z])(?:\)?$|\)|[.:] )")
_CHOSEN_TOO = re.compile(r"(?:[,;]|\b(?:and|or)\b) ?\(?[A-Z](?:\)|[.:])|[,;] ?[A-Z]$")
"""behind one choice, another: `(A), (B)`, but not `D. Both A and B`"""
_WORD = re.compile(r"(?:(?<!\d)[+-] ?(?=\d))?(?:\d+(?:[.:/-]\d+)+|[^\W_]+)%?")
"""also a number with its sign and all its digits, a date or a time"""


class Choice(NamedTuple):
    """A letter, and what it stands for, where that is said. Example: `(B) 12`"""

    letter: str
    text: str


def choice_of(gold: str) -> Choice | None:
    """None where a reference is no choice."""
    found = _CHOICE.fullmatch(unmarked(gold))
    return Choice(found[1] or found[2], found[3] or "") if found else None


def chosen_in(answer: str) -> Choice | None:
    """What an answer chooses, no letter for several; None where it begins with no letter."""
    answer = unmarked(answer)
    found = _CHOSEN.match(answer)
    if not found:
        return None
    others = _CHOSEN_TOO.search(answer, found.end())
    return Choice("" if others else found[1], answer[found.end() :].strip())


def same_words(gold: str, answer: str) -> bool:
    """Whether they say the same in words, dates and times: case and full stops do not count."""
    words = _words(gold)
    return bool(words) and words == _words(answer)


def _words(text: str) -> list[str]:
    """Empty where it is no text."""
    text = unmarked(text)
    if re.search(r"[\\^_{}=<>+*|¤]", text) or not re.search(r"[A-Za-z]{3}|\d:\d|(?i:^no$)", text):
        return []
    text = re.sub(r"(?<=\b[A-Za-z])\.|(?<=\d),(?=\d{3}(?!\d))", "", text).casefold()
    return [re.sub(r"(?<![\d.])0+(?=\d)", "", word) for word in _WORD.findall(text)]
