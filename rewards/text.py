"""How verifiers read a reply: words, sentences, list items, boxed answers."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
_ITEM_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s*")
_BOX = "\\boxed{"


def words_of(text: str) -> list[str]:
    """Runs of letters, e.g. `1:Cat don't!` -> `["Cat", "don't"]`."""
    return _WORD.findall(text)


def sentences_of(text: str) -> list[str]:
    """Stretches that end in `.`, `!` or `?`; a rest without an end counts as one."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def without_mark(line: str) -> str:
    """A list item's own text: `- cat` and `2. cat` -> `cat`."""
    return _ITEM_MARK.sub("", line).strip()


def boxed(text: str) -> list[str]:
    r"""The content of each `\boxed{...}`, braces balanced; an unclosed box gives nothing."""
    found: list[str] = []
    position = text.find(_BOX)
    while position >= 0:
        start = position + len(_BOX)
        end = _closing_brace(text, start)
        if end is None:
            break
        found.append(text[start:end])
        position = text.find(_BOX, end)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return None
