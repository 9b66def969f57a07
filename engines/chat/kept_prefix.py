"""Whether a template keeps a conversation as it was once more messages follow.

A rendering may differ from the beginning of a longer one in what the template itself adds:

- an empty thought that comes and goes (Qwen3, GLM), wherever the two differ, and nowhere else: one
  that stands in somebody's text stands in both
- the end token of the whole text, which only the last rendering has (Phi-3)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EMPTY_THOUGHT = re.compile(r"<think>\s*</think>")
_NEAR = 64
"""characters around a difference in which the empty thought that makes it begins"""


@dataclass(frozen=True, slots=True)
class Follow:
    """What comes after a rendering in a longer one."""

    text: str
    dropped: int
    """characters at the end of the shorter rendering that the longer one does not have"""


def what_follows(before: str, longer: str, end_text: str, pad: str | None) -> Follow | None:
    """What `longer` has behind `before`; None if it changes more than a template itself adds.
    `end_text`: the folder's end token; `pad`: what the template writes behind an empty thought,
    None where that is not known."""
    reached = _reached(before, longer, pad)
    if reached is not None:
        return Follow(longer[reached:], 0)
    kept = before.rstrip().removesuffix(end_text) if end_text else before
    reached = _reached(kept, longer, pad) if len(kept) < len(before.rstrip()) else None
    return None if reached is None else Follow(longer[reached:], len(before) - len(kept))


def empty_thought_length(text: str, pad: str | None) -> int:
    """Characters of an empty thought with which a text begins, with what separates it from the
    rest; 0 where there is none."""
    found = _EMPTY_THOUGHT.match(text, len(text) - len(text.lstrip()))
    return 0 if found is None else _ends(text, found.end(), pad)[0]


def _ends(text: str, end: int, pad: str | None) -> range:
    """Where an empty thought may end with the white space behind it, the last place first."""
    if pad is not None and text.startswith(pad, end):
        return range(end + len(pad), end + len(pad) - 1, -1)
    spaces = len(text) - end - len(text[end:].lstrip())
    return range(end + spaces, end - 1, -1)


def _reached(before: str, longer: str, pad: str | None) -> int | None:
    """Up to where `longer` is `before`; None if it is not."""
    if longer.startswith(before):
        return len(before)
    at = other = 0
    while True:
        same = _common(before, at, longer, other)
        at, other = at + same, other + same
        if at == len(before):
            return other
        if (passed := _passed(before, at, longer, other, pad)) is not None:
            at, other = passed
        elif (passed := _passed(longer, other, before, at, pad)) is not None:
            other, at = passed
        else:
            return None


def _passed(
    text: str, at: int, other_text: str, other: int, pad: str | None
) -> tuple[int, int] | None:
    """Both places once the empty thought around `at`, which only `text` has, is passed."""
    for found in _EMPTY_THOUGHT.finditer(text, max(0, at - _NEAR)):
        if found.start() > at:
            return None
        if at < found.end() and other >= at - found.start():
            other -= at - found.start()
            ends = _ends(text, found.end(), pad)
            return max(ends, key=lambda end: _common(text, end, other_text, other)), other
    return None


def _common(one: str, at: int, two: str, other: int) -> int:
    """How many characters are the same from these places on."""
    low, high = 0, min(len(one) - at, len(two) - other)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at : at + middle] == two[other : other + middle]:
            low = middle
        else:
            high = middle - 1
    return low
