"""How verifiers read a reply (its turns, boxed answers), and rewards for its shape: its length, its
repetitions, its format."""

from __future__ import annotations

import re
from dataclasses import replace

import regex

from engines.types import Message, Status, Transcript, Verdict
from infra.errors import InputError
from infra.prose.plain_text import SPACELESS, has_text

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|(?<=\s)[^\s\\{}$]+)")
_BEGUN, _ENDED = ("<think>", "<|channel|>analysis<|message|>"), ("</think>", "<|end|>")
"""with which a thought begins and ends"""
_LISTED = re.compile(r"(?:[\s,;$]|\\[,;: ()]|\band\b|\bor\b|\\text\{ ?(?:and|or) ?\})*")


def boxed(text: str) -> list[str]:
    r"""The content of each `\boxed{...}`, braces balanced; an unclosed box gives nothing. White
    space may stand before the brace, and `\boxed 42` is a box as well."""
    return [content for _, _, content in _boxes(text)]


def last_boxed(text: str) -> list[str]:
    r"""The content of the last box, and of those that make a list with it: nothing but commas and
    `and` or `or` is between them. Twice the same counts once."""
    found: list[str] = []
    begun = len(text)
    for start, end, content in reversed(_boxes(text)):
        if found and not _LISTED.fullmatch(text[end:begun]):
            break
        found.insert(0, content)
        begun = start
    return list(dict.fromkeys(found))


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """(start, end, content) of each."""
    found: list[tuple[int, int, str]] = []
    position = 0
    while box := _BOX.search(text, position):
        content, end = box[1], box.end()
        if content == "{":
            closing = _closing_brace(text, end)
            if closing is None:
                break
            content, end = text[end:closing], closing + 1
        found.append((box.start(), end, content))
        position = end
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return None


def assistant_turns(transcript: Transcript) -> list[Message]:
    return [message for message in transcript.messages if message.role == "assistant"]


def is_cut_in_thought(transcript: Transcript) -> bool:
    """Return whether the budget ran out in a thought: such a turn is not parsed, so its text is
    whole.
    """
    last = transcript.messages[-1] if transcript.messages else None
    if transcript.status is not Status.TRUNCATED or last is None or last.role != "assistant":
        return False
    is_whole = last.reasoning is None and not last.tool_calls
    ended = any(mark in last.content for mark in _ENDED)
    begun = bool(transcript.problem.thinking) or any(mark in last.content for mark in _BEGUN)
    return is_whole and begun and not ended and has_text(last.content)


def spoken(transcript: Transcript) -> Transcript:
    """Return the transcript without a thought that the budget cut off, which is no answer."""
    if not is_cut_in_thought(transcript):
        return transcript
    *before, last = transcript.messages
    return replace(transcript, messages=(*before, replace(last, content="")))


class Length:
    """From -1 to 0: 0 up to `budget - margin` tokens, then falling linearly to -1 at `budget`.

    A soft warning before the hard limit, so that a reply learns to end in time.
    """

    def __init__(self, *, budget: int, margin: int) -> None:
        if not 0 < margin <= budget:
            raise InputError(f"`margin` must be between 1 and `budget` ({budget}), not {margin!r}.")
        self._budget, self._margin = budget, margin

    async def __call__(self, transcript: Transcript) -> Verdict:
        excess = max(0, transcript.num_tokens - (self._budget - self._margin))
        return Verdict(-min(1.0, excess / self._margin), {"excess": float(excess)})


UNIT = rf"{SPACELESS}|[\w--{SPACELESS}]+"
"""a word, or a letter of a script that writes no spaces; for `regex.V1`"""
_UNITS = regex.compile(rf"{UNIT}|[^\w\s]", regex.V1)


class Repetition:
    """From -1 to 0: minus the share of n-grams that occurred before in the text; the worst of all
    thoughts and answers.

    Units are words, single symbols, and letters of scripts without spaces. `ngram` should exceed
    what an answer may rightly repeat.
    """

    def __init__(self, *, ngram: int = 12) -> None:
        if ngram < 1:
            raise InputError(f"`ngram` must be a whole number of at least 1, not {ngram!r}.")
        self._ngram = ngram

    async def __call__(self, transcript: Transcript) -> Verdict:
        turns = assistant_turns(transcript)
        texts = [text for turn in turns for text in (turn.reasoning or "", turn.content)]
        share = max(map(self._repeated, texts), default=0.0)
        return Verdict(-share, reason=f"repeats {share:.0%} of its n-grams" if share else "")

    def _repeated(self, text: str) -> float:
        units = _UNITS.findall(text)
        grams = [tuple(units[i : i + self._ngram]) for i in range(len(units) - self._ngram + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0


TAGS = re.compile(r"</?think>|</?tool_call>|</?arg_(?:key|value)>|<\|\w+\|>")


def format_fault(transcript: Transcript) -> str:
    """Return what is wrong with the form of a reply, in words; empty if it is well formed.

    Well formed: the model ended its turn itself, the answer is not empty and contains no tags, and
    each turn reasons if and only if the problem asks for thinking; where it leaves that to the
    model, a turn may reason or not.
    """
    if transcript.status is not Status.COMPLETED:
        return f"the reply is {transcript.status.value}"
    if not transcript.answer.strip():
        return "the answer is empty"
    for turn in assistant_turns(transcript):
        if TAGS.search(turn.content) or TAGS.search(turn.reasoning or ""):
            return "the text contains tags"
        reasons, asked = bool((turn.reasoning or "").strip()), transcript.problem.thinking
        if asked is not None and reasons != asked:
            return "reasoning is missing" if asked else "reasoning was not asked for"
    return ""


class Format:
    """1 if the reply is well formed, else 0."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        fault = format_fault(transcript)
        return Verdict(float(not fault), reason=fault)
