r"""The `math` reward: is the boxed answer equal to the reference, as mathematics?

Numbers, words and the forms around them (lists, sets, intervals, ...) are compared here, exactly
(`rewards/math_forms.py`); expressions by math-verify in a process of its own with a time limit
(`rewards/math_judge.py`). That would do any sum that an answer leaves open, so where a number is
asked for, the answer has to be one: `30+12` is no answer to `12+30`.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, ClassVar, cast

from engines.types import Transcript, Verdict
from infra.errors import InputError
from infra.numbers import value_text
from rewards.format import format_fault
from rewards.math_forms import same
from rewards.math_judge import MathJudge, TookTooLong
from rewards.math_writing import plain
from rewards.references import reference_of
from rewards.text import boxed, last_boxed

MAX_ANSWER = 500
"""characters; a longer answer is wrong unread"""
_LISTED = re.compile(r'\s*\[\s*"')


class Math:
    r"""1 if the reply is well formed and its last box contains the reference answer, else 0.

    Boxes with nothing but commas between them are one list of answers.

    A reference that is a list holds answers of which one is enough; of one that has a `\boxed{}`,
    that counts.
    """

    reference_keys: ClassVar = ("answer",)

    def __init__(self, *, time_limit: float = 5.0) -> None:
        """`time_limit`: seconds that one comparison may take; then the answer counts as wrong."""
        if time_limit <= 0:
            raise InputError(
                f"`time_limit` must be a number of seconds above 0, not {time_limit!r}."
            )
        self._judge = MathJudge(time_limit)

    async def __call__(self, transcript: Transcript) -> Verdict:
        golds = _golds(reference_of(transcript, self.reference_keys)["answer"])
        if fault := format_fault(transcript):
            return Verdict(0.0, reason=fault)
        answer = ", ".join(last_boxed(transcript.answer))
        if not answer:
            return Verdict(0.0, reason="no boxed answers: `math` reads what stands in \\boxed{...}")
        try:
            for gold in golds:
                if await self._equal(gold, answer):
                    return Verdict(1.0)
        except TookTooLong as error:
            return Verdict(0.0, reason=str(error))
        return Verdict(0.0, reason=f"answered {answer!r}, not {' or '.join(map(repr, golds))}")

    async def _equal(self, gold: str, answer: str) -> bool:
        if len(answer) > MAX_ANSWER:
            return gold == answer
        gold, answer = plain(gold), plain(answer)
        asked: dict[tuple[str, str], bool] = {}

        def note(first: str, second: str) -> bool:
            return asked.setdefault((first, second), False)

        right = same(gold, answer, note)
        if right or not asked:
            return right
        pairs = list(asked)
        asked |= dict(zip(pairs, await self._judge.each_equal(pairs), strict=True))
        return same(gold, answer, note)


def _golds(value: Any) -> list[str]:
    """Raises InputError for what is no answer."""
    if isinstance(value, list):
        return [gold for each in cast("list[Any]", value) for gold in _golds(each)]
    if isinstance(value, dict) or value is None:
        raise InputError(f"the reference answer is {value!r}; it must be a number or a text")
    if isinstance(value, str) and _LISTED.match(value):
        with suppress(ValueError):  # a list as JSON text
            return _golds(json.loads(value))
    text = value_text(value)
    boxes = boxed(text)
    return [boxes[-1] if boxes else text]
