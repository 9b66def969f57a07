"""The words of the built-in curricula, and what a tokenizer trained for them should keep whole.

The tiny demo model reads text through a tokenizer that splits digits one by one, keeps a run of
letters together, and takes every other character alone. Prompts are worded so that they stay short
under it: `LEXICON` words become one token each, and `PHRASES` are worth a token of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_WORDS = """
ant arm art ask bad bag bat bed big box boy bus cab can cap car cat cow cup dad day den dig dog
dot fan far fat fig fit fly fog fox gap gas get god gum gun ham hat hen hid hot hug lab lap leg
lid lip log map mat men mix mud mug nap net nod nor nut pad pan pet pig pin pot rag rat red rib
rod rug sad sap set sip six sun tab tag ten tie tip toy
"""
LEXICON: tuple[str, ...] = tuple(_WORDS.split())
"""Short words that answers are made of."""

NAMES: tuple[str, ...] = LEXICON[::4]
"""Entities and values of the agent's worlds: few, so that copying them is learnable at once."""

COUNTED_LETTERS = "XYZ"
"""Letters that are counted; upper case, so that keeping each whole never splits a word."""

PHRASES: tuple[str, ...] = (
    "\\boxed{",
    "max ",
    "count ",
    " in ",
    " of ",
    "repeat ",
    " times",
    " sep ",
    " end ",
    " words start ",
    " no ",
    "list ",
    " numbered",
    *COUNTED_LETTERS,
)
"""Strings that deserve one token each, added to a tokenizer as plain and not special tokens."""


def _by_first_letter() -> Mapping[str, Sequence[str]]:
    words: dict[str, list[str]] = {}
    for word in LEXICON:
        words.setdefault(word[0], []).append(word)
    return MappingProxyType({letter: tuple(found) for letter, found in words.items()})


WORDS_BY_LETTER: Mapping[str, Sequence[str]] = _by_first_letter()
