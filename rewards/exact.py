"""Rewards that compare a reply with the reference of a user's own files.

A reference that is a number, true or false is compared as that value: `42` is 42.0, whatever way of
writing it Python has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar, cast

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.json_text import last_match, value_text
from infra.shown_text import normal_form
from rewards.references import ANSWER, reference_of

_NUMBER = re.compile(r"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")

_FLOAT, _WHOLE = re.compile(r"[+-]?\d+\.\d+"), re.compile(r"[+-]?\d+\.0+")
COMPARING = ("math", "exact", "regex")
"""rewards that compare an answer with the reference"""
BY_LETTER = ("exact", "regex")
"""rewards for which a text is no number"""


class Exact:
    """1 if the reply is the reference answer, or one of them where it is a list, else 0."""

    reference_keys: ClassVar = ("answer",)

    def __init__(self, *, ignore_case: bool = False) -> None:
        """White space at the ends and its amount in between never count."""
        self._ignore_case = ignore_case

    async def __call__(self, transcript: Transcript) -> Verdict:
        return _compared(transcript, transcript.answer, self._ignore_case)


class Regex:
    """1 if what a pattern finds in the reply is the reference answer, or one of them, else 0.

    The last match counts, its group 1 if the pattern has one: `[Aa]nswer: (.+)`.
    """

    reference_keys: ClassVar = ("answer",)

    def __init__(self, *, pattern: str, ignore_case: bool = False) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise InputError(f"`pattern` is no regular expression: {error}") from error
        if self._pattern.groups > 1:
            raise InputError(f"`pattern` has {self._pattern.groups} groups; one says what counts")
        self._ignore_case = ignore_case

    async def __call__(self, transcript: Transcript) -> Verdict:
        found = last_match(self._pattern, transcript.answer)
        if not found:
            return Verdict(0.0, reason="nothing matches the pattern")
        return _compared(transcript, found, self._ignore_case)


def _compared(transcript: Transcript, said: str, ignore_case: bool) -> Verdict:
    """Raises InputError for a reference that no reply can be."""
    gold: Any = reference_of(transcript, (ANSWER,))[ANSWER]
    allowed: list[Any] = cast("list[Any]", gold) if isinstance(gold, list) else [gold]
    if any(is_said(each, said, ignore_case) for each in allowed):
        return Verdict(1.0)
    wanted = " or ".join(repr(each) if isinstance(each, str) else _text(each) for each in allowed)
    return Verdict(0.0, reason=f"answered {said[:80]!r}, not {wanted}"[:300])


def written_as_floats(texts: Sequence[str]) -> str:
    """Return what is to be said of references of which a program wrote whole numbers with `.0`, as
    pandas does if cells of the column are empty; empty for all others."""
    whole = [text.strip() for text in texts if _WHOLE.fullmatch(text.strip())]
    if not whole or not all(_FLOAT.fullmatch(text.strip()) for text in texts):
        return ""
    return (
        f"texts letter by letter, and references are written as {whole[0]!r}: an answer"
        f" {whole[0].partition('.')[0]!r} is not that. pandas writes whole numbers so if the column"
        ' has empty cells; save it with `.astype("Int64")`, or choose the reward `math`'
    )


def is_said(value: Any, said: str, ignore_case: bool = False) -> bool:
    """Return whether a reply is this value: a text letter by letter, and any other value as
    itself."""
    if isinstance(value, str):
        return _normalised(value, ignore_case) == _normalised(said, ignore_case)
    if isinstance(value, bool):
        return said.strip().casefold() == value_text(value)
    if isinstance(value, int | float):
        return _is_number(value, said.strip())
    try:
        return value is not None and _is_same(json.loads(said), value)
    except (ValueError, RecursionError):
        return False


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two values of JSON are equal; for Python true is 1."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        first, second = cast("dict[str, Any]", first), cast("dict[str, Any]", second)
        return first.keys() == second.keys() and all(_is_same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        pairs = zip(cast("list[Any]", first), cast("list[Any]", second), strict=False)
        return len(first) == len(second) and all(_is_same(a, b) for a, b in pairs)
    return first == second


def _is_number(value: float, said: str) -> bool:
    if not _NUMBER.fullmatch(said):
        return False
    number = Decimal(said.rstrip(".").replace(",", ""))
    if isinstance(value, int):
        return number == value
    return value_text(float(number)) == value_text(value)


def _text(value: Any) -> str:
    is_plain = isinstance(value, str | int | float)
    return value_text(value) if is_plain else json.dumps(value, ensure_ascii=False)


def _normalised(text: str, ignore_case: bool) -> str:
    text = normal_form("NFC", " ".join(text.split()))  # é is one character, or two
    return text.casefold() if ignore_case else text
