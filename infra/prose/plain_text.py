"""A text as people read it: what looks the same is the same, what nobody sees is not there; and how
it is split into words, lines and paragraphs."""

from __future__ import annotations

import re
from unicodedata import normalize

import regex

SPACELESS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""a letter of a script that writes no spaces between words; for `regex.V1`"""
QUOTES = ('""', "“”", "„“", "„”", "””", "«»", "»«", "「」", "『』")
"""double quotation marks, of English, German, Swedish, French and Japanese"""
_UNSEEN = regex.compile(
    r"""(?!\u200D\p{Extended_Pictographic}|\uFE0F\u20E3)
    (?!(?<=[\p{Emoji}--[0-9\#*]])[\uFE0E\uFE0F])
    [\p{Default_Ignorable_Code_Point}\uFFF9-\uFFFB\x00-\x08\x0E-\x1F\x7F]""",
    regex.V1 | regex.X,
)
"""also joiners, which part no words in any script, but for those that make one emoji of several"""
_FOLDED = regex.compile(
    r"[[\p{L}\p{M}\p{Nd}\p{Zs}\p{Other_Alphabetic}！，．；：？]--[\p{Emoji}--[0-9]]]+", regex.V1
)
"""letters, digits and spaces of any form; of marks only those of East Asian type, as `…` is not
`...`"""
_APOSTROPHE = regex.compile(r"[’ʼ＇]|(?<=\p{L})[´‘′](?=\p{L})")
_LETTER = r"[\p{L}\p{N}]\p{M}*+"
_WORD = regex.compile(
    rf"(?:{_LETTER})++(?:(?:'(?=\p{{L}})|(?<=\d)\.(?=\d)|(?<=\d),(?=\d{{3}}(?!\d)))(?:{_LETTER})++)*+"
)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")
ITEM_MARK = re.compile(r"\s*(?:[-*+•]\s+|\d{1,9}[.):](?!\d)\s*)")


def plain(text: str) -> str:
    """Return the text composed, in usual letters, with `'` for every apostrophe and without what
    nobody sees, e.g. `ｃａ\\u00adt` -> `cat`."""
    text = _UNSEEN.sub("", text)
    if text.isascii():
        return text
    text = _FOLDED.sub(lambda run: normalize("NFKC", run[0]), normalize("NFC", text))
    return normalize("NFC", _APOSTROPHE.sub("'", text))


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
