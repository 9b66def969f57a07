"""How a word, or several in a row, are found in a text: whole, capitals or not.

A word is whole where no letter or digit is beside it: `cat` is in `the cat's tail`, not in `cats`.
Scripts without spaces between words have no such places, and so any will do; behind a Korean word
its particles may stand, as in `고양이는`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import regex

from infra.prose.plain_text import SPACELESS, has_text, without_mark

_LETTER = r"[\p{L}\p{M}\p{N}]"
_SPACED = regex.compile(rf"(?!{SPACELESS})[\p{{L}}\p{{M}}\p{{N}}]", regex.V1)
_IS_SPACELESS = regex.compile(rf"{SPACELESS}[\p{{L}}\p{{M}}]*", regex.V1)

_HANGUL = regex.compile(r"\p{Hangul}")
_VOWEL_MARK = regex.compile(r"[\u064B-\u0652\u0670\u0591-\u05BD\u05BF\u05C1\u05C2\u05C7]")
_PARTICLE = (
    "은|는|이|가|을|를|의|에|와|과|도|만|(?:으로|로)|(?:에|에게|께|한테)서?|보다|처럼|같이|까지"
    "|부터|마다|조차|마저|밖에|이?나|이?랑|하고|이?라도|야|아|들|이다|이에요|예요|이며|이고"
    "|(?:이었|였|입니)\\p{Hangul}*+|이?라는|이?라고"
)


def count_word(text: str, word: str) -> int:
    """Return how often the word is there."""
    return sum(1 for _ in _compiled(word).finditer(folded(text)))


def has_word(text: str, word: str) -> bool:
    return _compiled(word).search(folded(text)) is not None


def begins_with_word(text: str, word: str) -> bool:
    """Return whether it is the first word; the mark of a list's item is none."""
    begin = _compiled(word, before=r"\A[^\p{L}\p{N}]*+")
    return begin.match(folded(without_mark(text))) is not None


def ends_with_word(text: str, word: str) -> bool:
    return _compiled(word, after=r"[^\p{L}\p{N}]*+\Z").search(folded(text)) is not None


def have_order(text: str, words: Sequence[str]) -> bool:
    """Return whether each word is somewhere after the one before it."""
    text, at = folded(text), 0
    for word in words:
        found = _compiled(word).search(text, at)
        if found is None:
            return False
        at = found.end()
    return True


def have_neighbours(text: str, first: str, second: str) -> bool:
    """Return whether the second word directly follows the first."""
    between = r"(?!'\p{L})[^\p{L}\p{M}\p{N}]++"
    if not (_SPACED.match(first[-1:]) and _SPACED.match(second[:1])):
        between = r"[^\p{L}\p{M}\p{N}]*+"
    pair = regex.compile(_written(first) + between + _written(second), regex.V1)
    return pair.search(folded(text)) is not None


def folded(text: str) -> str:
    """Return the text with no difference left between small letters and capitals, of `İ` too, and
    without the vowels that Arabic and Hebrew may leave out."""
    return _VOWEL_MARK.sub("", text.casefold()).replace("i\u0307", "i")


def is_made_of(run: str, words: Collection[str]) -> bool:
    """Return whether a word is one of these; in a script without spaces, one after the other."""
    run, small = folded(run), [folded(word) for word in words]
    if run in small or not _IS_SPACELESS.fullmatch(run):
        return run in small
    reached = {0}
    for at in range(len(run)):
        if at in reached:
            reached.update(at + len(word) for word in small if word and run.startswith(word, at))
    return len(run) in reached


@lru_cache(4096)
def _compiled(word: str, before: str = "", after: str = "") -> Any:
    return regex.compile(before + _written(word) + after, regex.V1)


def _written(word: str) -> str:
    """The pattern of a word. Raises ValueError for one without a letter or digit."""
    if not has_text(word):
        raise ValueError(f"{word!r} is no word")
    small = folded(word).replace("’", "'").split()
    inner = r"\s+".join(map(regex.escape, small))
    left = rf"(?<!{_LETTER})" if _SPACED.match(small[0][0]) else ""
    right = rf"(?!{_LETTER})" if _SPACED.match(small[-1][-1]) else ""
    if _HANGUL.match(small[-1][-1]):
        right = rf"(?:{_PARTICLE}){{0,3}}{right}"
    return f"{left}{inner}{right}"
