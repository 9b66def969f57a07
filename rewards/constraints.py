"""The `constraints` reward: what a reply must obey, and how each kind of constraint is checked.

A problem's reference holds the list: `{"constraints": [{"kind": "word_count", "exactly": 3}]}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.references import reference_of
from rewards.text import lines_of, sentences_of, without_mark, words_of


def repetition(reply: str, *, unit: str, times: int, separator: str, end: str = "") -> bool:
    """The unit, so many times, with the separator between, and nothing else."""
    return reply == separator.join([unit] * times) + end


def joined(reply: str, *, separator: str, end: str = "") -> bool:
    """Only words, with just this separator between them and this end after the last."""
    found = words_of(reply)
    return bool(found) and reply == separator.join(found) + end


def numbered_list(
    reply: str, *, items: Sequence[str], mark: str = ". ", separator: str = "\n", end: str = ""
) -> bool:
    """These items, numbered from 1, in this order, and nothing else."""
    return reply == separator.join(f"{i}{mark}{item}" for i, item in enumerate(items, 1)) + end


def bullet_list(reply: str, *, count: int | None = None) -> bool:
    """Every line is an item `- ...`; `count` of them if said."""
    found = lines_of(reply)
    is_list = bool(found) and all(line.startswith("- ") and without_mark(line) for line in found)
    return is_list and (count is None or len(found) == count)


def item_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` lines that are not empty."""
    return within(len(lines_of(reply)), **bounds)


def paragraph_count(reply: str, **bounds: Any) -> bool:
    """`exactly`, `at_least`, `at_most` blocks with an empty line between them."""
    return within(len([block for block in reply.split("\n\n") if block.strip()]), **bounds)


def is_json(reply: str) -> bool:
    """The whole reply is one JSON value, without duplicate keys."""
    return _parse(reply) is not None


def json_keys(reply: str, *, keys: Sequence[str]) -> bool:
    """The reply is a JSON object with these keys and no others."""
    value = _parse(reply)
    return isinstance(value, dict) and set(value) == set(keys)


def _parse(reply: str) -> Any:
    """The JSON value, or None (also for a bare `null`, which answers nothing)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    def no_number(name: str) -> Any:
        raise ValueError(f"{name} is not JSON, although Python's parser takes it")

    try:
        return json.loads(reply, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError):
        return None


LAYOUT_KINDS: dict[str, Check] = {
    "repetition": repetition,
    "joined": joined,
    "numbered_list": numbered_list,
    "bullet_list": bullet_list,
    "item_count": item_count,
    "paragraph_count": paragraph_count,
    "json": is_json,
    "json_keys": json_keys,
}


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


ALL_KINDS: Mapping[str, Check] = {**KINDS, **LAYOUT_KINDS}


class Constraints:
    """Parts: one 0 or 1 for each constraint, by its kind."""

    reference_keys: ClassVar = ("constraints",)

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference = reference_of(transcript, self.reference_keys)
        constraints: list[dict[str, Any]] = reference["constraints"]
        parts: dict[str, float] = {}
        for constraint in constraints:
            holds = obeys(transcript.answer, constraint)
            parts[constraint["kind"]] = min(parts.get(constraint["kind"], 1.0), float(holds))
        broken = [kind for kind, holds in parts.items() if not holds]
        reason = f"breaks {', '.join(broken)}" if broken else ""
        return Verdict(float(not broken), parts, reason)


def obeys(reply: str, constraint: Mapping[str, Any]) -> bool:
    """Whether a reply obeys one constraint. Raises for an unknown kind or wrong parameters."""
    kind = constraint["kind"]
    if kind not in ALL_KINDS:
        raise ValueError(f"unknown constraint {kind!r}; known: {', '.join(sorted(ALL_KINDS))}")
    parameters = {key: value for key, value in constraint.items() if key != "kind"}
    return ALL_KINDS[kind](reply, **parameters)
