"""How verifiers read a reply: words, sentences, list items, boxed answers."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")
_ITEM_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.):])\s*")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{|(?<=\s)[^\s\\{}$]+)")
_LISTED = re.compile(r"(?:[\s,;$]|\\[,;: ()]|\band\b|\bor\b|\\text\{ ?(?:and|or) ?\})*")


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
