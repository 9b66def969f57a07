"""Rewards that compare a reply's text with the reference of a user's own files."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.references import reference_of


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
        found = list(self._pattern.finditer(transcript.answer))
        if not found:
            return Verdict(0.0, reason="nothing matches the pattern")
        group = 1 if self._pattern.groups else 0
        return _compared(transcript, found[-1].group(group) or "", self._ignore_case)


def _compared(transcript: Transcript, said: str, ignore_case: bool) -> Verdict:
    gold: Any = reference_of(transcript, ("answer",))["answer"]
    allowed = [
        _normalised(each, ignore_case) for each in (gold if isinstance(gold, list) else [gold])
    ]
    right = _normalised(said, ignore_case) in allowed
    return Verdict(
        float(right), reason="" if right else f"answered {said[:80]!r}, not {gold!r}"[:300]
    )


def _normalised(value: Any, ignore_case: bool) -> str:
    text = " ".join(str(value).split())
    return text.casefold() if ignore_case else text
