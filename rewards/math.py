r"""The `math` reward: is the boxed answer equal to the reference, as mathematics?

Strings and whole numbers are compared here; everything else goes to math-verify in a process of
its own with a time limit (`rewards/math_judge.py`). That would do any sum that an answer leaves
open, so where a number is asked for, the answer has to be one: `30+12` is no answer to `12+30`.
"""

from __future__ import annotations

import re
from typing import ClassVar

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.format import format_fault
from rewards.math_judge import MathJudge, TookTooLong
from rewards.references import reference_of
from rewards.text import boxed

MAX_ANSWER = 500
"""characters; a longer answer is wrong unread"""
_NUMBER = re.compile(r"[+-]?\d{1,500}")
_VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\d+/\d+|\\[dt]?frac\{\d+\}\{\d+\})")
"""a reference that is a number: whole, decimal or a fraction"""
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])(\}?)\^\{?-?\d+\}?")
"""as in `12\\text{ cm}^2`"""
_NUMERAL = re.compile(
    r"10\^\{?\d+\}?|(?:(?:\d{1,3}(?:(?:,|\{,\}|\\[,!; ])\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:(?:\\times|\\cdot|[×*])10\^\{?[+-]?\d+\}?|[eE][+-]?\d+)?"
)
_FRACTION = re.compile(r"\\[dt]?frac\{-?\d+\}\{\d+\}|\d+/\d+")
_FUNCTION = re.compile(
    r"!|√|\\(?:sqrt|lfloor|lceil|log|ln|lg|exp|sin|cos|tan|binom|max|min|gcd|sum|prod|int)"
)
_LOOSE_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\.?\d)")
"""white space that stands not between two numbers"""
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:\s\d{3})+(?!\s?\d)")
"""thousands apart, as in `12 000`"""
_MIXED = re.compile(r"([+-]?)(\d+)\s(\d+)/(\d+)")


class Math:
    """1 if the reply is well formed and its one box contains the reference answer, else 0."""

    reference_keys: ClassVar = ("answer",)

    def __init__(self, *, time_limit: float = 5.0) -> None:
        """`time_limit`: seconds that one comparison may take; then the answer counts as wrong."""
        if time_limit <= 0:
            raise InputError(
                f"`time_limit` must be a number of seconds above 0, not {time_limit!r}."
            )
        self._judge = MathJudge(time_limit)

    async def __call__(self, transcript: Transcript) -> Verdict:
        gold = str(reference_of(transcript, self.reference_keys)["answer"])
        if fault := format_fault(transcript):
            return Verdict(0.0, reason=fault)
        boxes = boxed(transcript.answer)
        if len(boxes) != 1:
            return Verdict(0.0, reason=f"{len(boxes) or 'no'} boxed answers")
        try:
            right = await self._equal(gold, boxes[0])
        except TookTooLong as error:
            return Verdict(0.0, reason=str(error))
        return Verdict(float(right), reason="" if right else f"answered {boxes[0]!r}, not {gold!r}")

    async def _equal(self, gold: str, answer: str) -> bool:
        gold, answer = _normalised(gold), _normalised(answer)
        if gold == answer:
            return True
        if not answer or len(answer) > MAX_ANSWER:
            return False
        if _NUMBER.fullmatch(gold) and _NUMBER.fullmatch(answer):
            return int(gold) == int(answer)
        if _VALUE.fullmatch(gold) and not _is_worked_out(answer, _NUMBER.fullmatch(gold) is None):
            return False
        return await self._judge.equal(gold, answer)


def _is_worked_out(answer: str, fractions: bool) -> bool:
    """Whether it is one number, whatever stands beside it, or if `fractions` a fraction: nothing is
    left for the judge to compute."""
    value = _UNIT_POWER.sub(r"\1", answer.rpartition("=")[2])
    if _FUNCTION.search(value):
        return False
    if fractions:
        value = _FRACTION.sub("1", value)
    return len(_NUMERAL.findall(value)) == 1


def _normalised(text: str) -> str:
    """Without white space that means nothing; a mixed number as a fraction."""
    text = _LOOSE_SPACE.sub("", text.strip().strip("$").strip())
    text = _GROUPED.sub(lambda found: re.sub(r"\s", "", found.group()), text)
    if mixed := _MIXED.fullmatch(text):
        sign, whole, over, under = mixed.groups()
        return f"{sign}{int(whole) * int(under) + int(over)}/{under}"
    return text
