"""Deterministic verifiers of what a reply says: counts, cases, words, letters, order, length.

Each is a function `(reply, **parameters) -> bool`, found by its kind in `KINDS`. A constraint is
`{"kind": KIND, **parameters}`. Words are runs of letters (`rewards/text.py`); unless a verifier is
about case, it ignores case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from infra.errors import InputError
from rewards.text import sentences_of, words_of

Check = Callable[..., bool]


def within(
    value: int, exactly: int | None = None, at_least: int | None = None, at_most: int | None = None
) -> bool:
    return (
        (exactly is None or value == exactly)
        and (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
    )


def word_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` words."""
    return within(len(words_of(reply)), **bounds)


def sentence_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` sentences."""
    return within(len(sentences_of(reply)), **bounds)


def length(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` characters."""
    return within(len(reply), **bounds)


def case(reply: str, *, case: Literal["lower", "upper", "title"]) -> bool:
    """Every word in lower case, upper case, or with only its first letter upper."""
    test = {"lower": str.islower, "upper": str.isupper, "title": _is_title}[case]
    found = words_of(reply)
    return bool(found) and all(test(word) for word in found)


def _is_title(word: str) -> bool:
    """Unlike `str.istitle`, also of `Don't`, which is one word."""
    return word[0].istitle() and not any(letter.isupper() for letter in word[1:])


def starts_with(reply: str, *, text: str) -> bool:
    return reply.startswith(text)


def ends_with(reply: str, *, text: str) -> bool:
    return reply.endswith(text)


def each_starts_with(reply: str, *, text: str) -> bool:
    """Every word begins so."""
    found = words_of(reply)
    return bool(found) and all(word.lower().startswith(text.lower()) for word in found)


def keyword(reply: str, *, word: str, at_least: int = 1, at_most: int | None = None) -> bool:
    """The reply contains the word, as often as required."""
    (wanted,) = _lower([word])
    count = [found.lower() for found in words_of(reply)].count(wanted)
    return within(count, at_least=at_least, at_most=at_most)


def forbidden(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains none of the words."""
    found = {word.lower() for word in words_of(reply)}
    return bool(found) and found.isdisjoint(_lower(words))


def allowed_words(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains no other words."""
    found = {word.lower() for word in words_of(reply)}
    return bool(found) and found <= set(_lower(words))


def _lower(words: Sequence[str]) -> list[str]:
    """In lower case. Raises InputError for what no reply can have as one word."""
    for word in words:
        if words_of(word) != [word]:
            raise InputError(f"{word!r} is not one word; a word is a run of letters, e.g. `don't`")
    return [word.lower() for word in words]


def no_letter(reply: str, *, letter: str) -> bool:
    return bool(words_of(reply)) and letter.lower() not in reply.lower()


def distinct(reply: str) -> bool:
    """No word twice."""
    found = [word.lower() for word in words_of(reply)]
    return bool(found) and len(set(found)) == len(found)


def alphabetical(reply: str) -> bool:
    """Words in alphabetical order."""
    found = [word.lower() for word in words_of(reply)]
    return bool(found) and found == sorted(found)


KINDS: dict[str, Check] = {
    "word_count": word_count,
    "sentence_count": sentence_count,
    "length": length,
    "case": case,
    "starts_with": starts_with,
    "ends_with": ends_with,
    "each_starts_with": each_starts_with,
    "keyword": keyword,
    "forbidden": forbidden,
    "allowed_words": allowed_words,
    "no_letter": no_letter,
    "distinct": distinct,
    "alphabetical": alphabetical,
}
