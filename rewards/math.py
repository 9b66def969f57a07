r"""The `math` reward: is the boxed answer equal to the reference, as mathematics?

Strings and whole numbers are compared here; everything else goes to math-verify in a process of
its own with a time limit (`rewards/math_judge.py`).
"""

from __future__ import annotations

import re
from typing import Any

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.format import format_fault
from rewards.math_judge import MathJudge, TookTooLong
from rewards.text import boxed

MAX_ANSWER = 500
"""characters; a longer answer is wrong unread"""
_NUMBER = re.compile(r"[+-]?\d{1,500}")


class Math:
    """1 if the reply is well formed and its one box contains the reference answer, else 0."""

    def __init__(self, *, time_limit: float = 5.0) -> None:
        """`time_limit`: seconds that one comparison may take; then the answer counts as wrong."""
        if time_limit <= 0:
            raise InputError(
                f"`time_limit` must be a number of seconds above 0, not {time_limit!r}."
            )
        self._judge = MathJudge(time_limit)

    async def __call__(self, transcript: Transcript) -> Verdict:
        reference: Any = transcript.problem.reference
        gold = str(reference["answer"])
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
        return await self._judge.equal(gold, answer)


def _normalised(text: str) -> str:
    return "".join(text.split()).strip("$")
