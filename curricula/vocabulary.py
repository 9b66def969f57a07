"""The words that generated problems are made of, and the slips that a noisy demonstrator makes.

The tiny demo model reads text through a tokenizer that splits digits one by one, keeps a run of
letters together, and takes every other character alone. Prompts are worded so that they stay short
under it: `LEXICON` words become one token each, and `PHRASES` are worth a token of their own.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from engines.types import Message

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
DROP_SHARE = 0.25
"""of all slips; the others replace"""
_TOKEN = re.compile(r"\\boxed\{[^}]*\}|[A-Za-z]+|\d|.", re.DOTALL)
_BOX_START = len("\\boxed{")
_CLASSES: tuple[Sequence[str], ...] = (
    LEXICON,
    string.digits,
    COUNTED_LETTERS,
    tuple(" +-*=<>,.!?:_"),
)
_CLASS_OF = {token: members for members in _CLASSES for token in members}


def _by_first_letter() -> Mapping[str, Sequence[str]]:
    words: dict[str, list[str]] = {}
    for word in LEXICON:
        words.setdefault(word[0], []).append(word)
    return MappingProxyType({letter: tuple(found) for letter, found in words.items()})


WORDS_BY_LETTER: Mapping[str, Sequence[str]] = _by_first_letter()


@dataclass(frozen=True, slots=True)
class _Site:
    """A visible token: where it is, and how to write the turns with another one in its place."""

    token: str
    rewrite: Callable[[str], tuple[Message, ...]]


def slip(turns: Sequence[Message], rng: random.Random) -> tuple[Message, ...]:
    """`turns` with one visible token of an assistant turn wrong or missing."""
    sites = [site for index in range(len(turns)) for site in _sites(tuple(turns), index)]
    if not sites:
        return tuple(turns)
    site = rng.choice(sites)
    if rng.random() < DROP_SHARE:
        return site.rewrite("")
    return site.rewrite(rng.choice(_CLASS_OF[site.token]))


def _sites(turns: tuple[Message, ...], index: int) -> list[_Site]:
    turn = turns[index]
    if turn.role != "assistant":
        return []

    def put(message: Message) -> tuple[Message, ...]:
        return (*turns[:index], message, *turns[index + 1 :])

    sites = _text_sites(turn.reasoning or "", lambda text: put(replace(turn, reasoning=text)))
    sites += _text_sites(turn.content, lambda text: put(replace(turn, content=text)))
    for number, call in enumerate(turn.tool_calls):
        for key, value in call.arguments.items():
            if isinstance(value, str):
                sites += _text_sites(
                    value, lambda text, n=number, k=key: put(_with_argument(turn, n, k, text))
                )
    return sites


def _with_argument(turn: Message, number: int, key: str, text: str) -> Message:
    calls = list(turn.tool_calls)
    call = calls[number]
    calls[number] = replace(call, arguments={**call.arguments, key: text})
    return replace(turn, tool_calls=tuple(calls))


def _text_sites(text: str, put: Callable[[str], tuple[Message, ...]]) -> list[_Site]:
    return [
        _Site(text[start:end], lambda new, a=start, b=end: put(text[:a] + new + text[b:]))
        for start, end in _spans(text)
        if text[start:end] in _CLASS_OF
    ]


def _spans(text: str, offset: int = 0) -> list[tuple[int, int]]:
    """Start and end of each token; what stands inside a box counts, the box itself does not."""
    spans: list[tuple[int, int]] = []
    for match in _TOKEN.finditer(text):
        start = offset + match.start()
        if match.group().startswith("\\boxed{"):
            spans += _spans(match.group()[_BOX_START:-1], start + _BOX_START)
        else:
            spans.append((start, offset + match.end()))
    return spans
