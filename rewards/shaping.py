"""Terms that shape training and never count as an outcome: format, repetition, length."""

from __future__ import annotations

import re

from engines.types import Message, Status, Transcript, Verdict
from infra.errors import InputError

_TAGS = re.compile(r"</?think>|</?tool_call>|</?arg_(?:key|value)>|<\|\w+\|>")
_UNIT = re.compile(r"\w+|[^\w\s]")


def format_fault(transcript: Transcript) -> str:
    """What is wrong with the form of a reply, in words; empty if it is well formed.

    Well formed: it ended by itself, the answer is not empty and holds no tags, and each turn
    reasons if and only if the problem asks for thinking.
    """
    if transcript.status is not Status.COMPLETED:
        return f"the reply is {transcript.status.value}"
    if not transcript.answer.strip():
        return "the answer is empty"
    for turn in _assistant_turns(transcript):
        if _TAGS.search(turn.content) or _TAGS.search(turn.reasoning or ""):
            return "the text contains tags"
        reasons = bool((turn.reasoning or "").strip())
        if reasons != transcript.problem.thinking:
            return (
                "reasoning is missing"
                if transcript.problem.thinking
                else "reasoning was not asked for"
            )
    return ""


class Format:
    """1 if the reply is well formed, else 0."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        fault = format_fault(transcript)
        return Verdict(float(not fault), reason=fault)


class Repetition:
    """From -1 to 0: minus the share of a turn's n-grams that stood there before; worst turn.

    Units are words and single symbols. `ngram` should exceed what an answer may rightly repeat.
    """

    def __init__(self, *, ngram: int = 12) -> None:
        if ngram < 1:
            raise InputError(f"`ngram` must be a whole number of at least 1, not {ngram!r}.")
        self._ngram = ngram

    async def __call__(self, transcript: Transcript) -> Verdict:
        texts = [f"{t.reasoning or ''} {t.content}" for t in _assistant_turns(transcript)]
        share = max(map(self._repeated, texts), default=0.0)
        return Verdict(-share, reason=f"repeats {share:.0%} of its n-grams" if share else "")

    def _repeated(self, text: str) -> float:
        units = _UNIT.findall(text)
        grams = [tuple(units[i : i + self._ngram]) for i in range(len(units) - self._ngram + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Length:
    """From -1 to 0: nothing up to `budget - margin` tokens, then falling evenly to -1 at `budget`.

    A soft warning before the hard limit, so that a reply learns to end in time.
    """

    def __init__(self, *, budget: int, margin: int) -> None:
        if not 0 < margin <= budget:
            raise InputError(f"`margin` must be between 1 and `budget` ({budget}), not {margin!r}.")
        self._budget, self._margin = budget, margin

    async def __call__(self, transcript: Transcript) -> Verdict:
        excess = max(0, transcript.num_tokens - (self._budget - self._margin))
        return Verdict(-min(1.0, excess / self._margin), {"excess": float(excess)})


def _assistant_turns(transcript: Transcript) -> list[Message]:
    return [message for message in transcript.messages if message.role == "assistant"]
