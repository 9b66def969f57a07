"""How a text is split into words, lines and paragraphs."""

from __future__ import annotations

import re

import regex

_LETTER = r"[\p{L}\p{N}]\p{M}*+"
_WORD = regex.compile(
    rf"(?:{_LETTER})++(?:(?:'(?=\p{{L}})|(?<=\d)\.(?=\d)|(?<=\d),(?=\d{{3}}(?!\d)))(?:{_LETTER})++)*+"
)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
ITEM_MARK = re.compile(r"\s*(?:[-*+•]\s+|\d{1,9}[.):](?!\d)\s*)")


def has_text(text: str) -> bool:
    """Return whether there is a letter or a digit."""
    return any(character.isalnum() for character in text)


def words_of(text: str) -> list[str]:
    """Runs of letters and digits with what is inside them, e.g. `2 Cats don’t eat 1,000!` ->
    `["2", "Cats", "don't", "eat", "1,000"]`."""
    return list(map(str, _WORD.findall(text.replace("’", "'"))))


def spelled_words_of(text: str) -> list[str]:
    """Words with a letter in them: numbers are spelled in no way."""
    return [word for word in words_of(text) if any(map(str.isalpha, word))]


def lines_of(text: str) -> list[str]:
    """Lines with a letter or a digit."""
    return [line for line in text.splitlines() if has_text(line)]


def paragraphs_of(text: str) -> list[str]:
    """Blocks with an empty line between them, and a letter or a digit in each."""
    blocks = _EMPTY_LINE.split(text.replace("\r\n", "\n"))
    return [block.strip() for block in blocks if has_text(block)]


def without_mark(line: str) -> str:
    """A list item's own text: `- cat` and `2. cat` -> `cat`."""
    mark = ITEM_MARK.match(line)
    return line[mark.end() if mark else 0 :].strip()
