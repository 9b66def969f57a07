"""How much of a reply repeats itself; it shapes training and is not an outcome."""

from __future__ import annotations

import re

from engines.types import Transcript, Verdict
from infra.errors import InputError
from rewards.assistant_turns import assistant_turns

_UNIT = re.compile(r"\w+|[^\w\s]")


class Repetition:
    """From -1 to 0: minus the share of n-grams that occurred before in the turn; worst turn.

    Units are words and single symbols. `ngram` should exceed what an answer may rightly repeat.
    """

    def __init__(self, *, ngram: int = 12) -> None:
        if ngram < 1:
            raise InputError(f"`ngram` must be a whole number of at least 1, not {ngram!r}.")
        self._ngram = ngram

    async def __call__(self, transcript: Transcript) -> Verdict:
        texts = [f"{t.reasoning or ''} {t.content}" for t in assistant_turns(transcript)]
        share = max(map(self._repeated, texts), default=0.0)
        return Verdict(-share, reason=f"repeats {share:.0%} of its n-grams" if share else "")

    def _repeated(self, text: str) -> float:
        units = _UNIT.findall(text)
        grams = [tuple(units[i : i + self._ngram]) for i in range(len(units) - self._ngram + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0
