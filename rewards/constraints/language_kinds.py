"""Constraints on the writing system of a reply, by Unicode's own tables.

Languages that share a writing system are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from unicodedata import normalize

import regex

from infra.errors import InputError
from infra.prose.plain_text import paragraphs_of
from infra.prose.sentence_ends import sentences_of
from rewards.constraints.bounds import bounded

_ENOUGH = 0.9
"""of the letters: names and words of other languages stand in every text"""
_ACCENTED = regex.compile(r"[\p{Latin}--[a-zA-Z]]", regex.VERSION1)
_LETTER = regex.compile(r"\p{L}")
_JAPANESE = "Japanese"
"""Kana with Chinese characters or without, for which Unicode has no single name"""


def script(reply: str, *, script: str) -> bool:
    """Nine of ten letters, at least, are of the script, e.g. Greek, Cyrillic, Han or Japanese."""
    return _share(reply, script) >= _ENOUGH


def only_script(reply: str, *, script: str) -> bool:
    """Every letter is of the script."""
    return _share(reply, script) == 1


def no_script(reply: str, *, script: str) -> bool:
    """No letter is of the script."""
    return _LETTER.search(reply) is not None and _letters_of(script).search(reply) is None


@bounded
def letters_of_script(reply: str, *, script: str) -> int:
    """How many letters are of the script."""
    return len(_letters_of(script).findall(reply))


def scripts_by_paragraph(reply: str, *, scripts: list[str]) -> bool:
    """There are as many paragraphs as scripts, each written in its own."""
    return _each_in_its_own(paragraphs_of(reply), scripts)


def scripts_by_sentence(reply: str, *, scripts: list[str]) -> bool:
    """There are as many sentences as scripts, each written in its own."""
    return _each_in_its_own(sentences_of(reply), scripts)


@bounded
def accented_letters(reply: str) -> int:
    """How many Latin letters beside a to z there are, e.g. `é` or `ß`."""
    return len(_ACCENTED.findall(normalize("NFC", reply)))


def plain_latin(reply: str) -> bool:
    """Every letter is one from a to z."""
    found = _LETTER.findall(normalize("NFC", reply))
    return bool(found) and all(letter.isascii() for letter in found)


def _share(reply: str, script: str) -> float:
    wanted, found = _letters_of(script), _LETTER.findall(reply)
    if script == _JAPANESE and not regex.search(r"[\p{Hiragana}\p{Katakana}]", reply):
        return 0.0  # Chinese
    return sum(wanted.match(letter) is not None for letter in found) / max(1, len(found))


@cache
def _letters_of(script: str) -> Any:
    known = (
        r"\p{Hiragana}\p{Katakana}\p{Han}ー" if script == _JAPANESE else rf"\p{{Script={script}}}"
    )
    try:
        return regex.compile(rf"[[{known}]&&\p{{L}}]", regex.VERSION1)
    except regex.error:
        raise InputError(
            f"script {script!r} is none that Unicode knows; e.g. Latin, Greek, Cyrillic, Arabic,"
            " Hebrew, Devanagari, Thai, Hangul, Han, or Japanese"
        ) from None


def _each_in_its_own(parts: list[str], scripts: list[str]) -> bool:
    """Raises InputError for an unknown script."""
    for name in scripts:
        _letters_of(name)
    paired = zip(parts, scripts, strict=False)
    return len(parts) == len(scripts) > 0 and all(
        script(part, script=name) for part, name in paired
    )


LANGUAGE_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        script,
        only_script,
        no_script,
        letters_of_script,
        scripts_by_paragraph,
        scripts_by_sentence,
        accented_letters,
        plain_latin,
    )
}
