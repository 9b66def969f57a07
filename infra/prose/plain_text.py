"""A text as people read it: what looks the same is the same, and what nobody sees is not there."""

from __future__ import annotations

from unicodedata import normalize

import regex

SPACELESS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
"""a letter of a script that writes no spaces between words; for `regex.V1`"""
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


def plain(text: str) -> str:
    """Return the text composed, in usual letters, with `'` for every apostrophe and without what
    nobody sees, e.g. `ｃａ\\u00adt` -> `cat`."""
    text = _UNSEEN.sub("", text)
    if text.isascii():
        return text
    text = _FOLDED.sub(lambda run: normalize("NFKC", run[0]), normalize("NFC", text))
    return normalize("NFC", _APOSTROPHE.sub("'", text))
