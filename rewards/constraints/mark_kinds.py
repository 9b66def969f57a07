"""Constraints on punctuation, capitals and other signs of a reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Literal
from unicodedata import category

import regex

from infra.prose.plain_text import QUOTES, has_text, lines_of, spelled_words_of, words_of
from infra.prose.sentence_ends import ended_sentences_of, sentences_of
from rewards.constraints.bounds import bounded

_EMOJI = regex.compile(r"\p{Emoji_Presentation}|\p{Emoji}\uFE0F")
_ONLY_EMOJIS = regex.compile(r"(?:[\p{Emoji_Presentation}\p{M}\u200D\s]|\p{Emoji}\uFE0F)+")
_WORDS_AND_SPACE = regex.compile(r"[\p{L}\p{M}\p{N}\s]*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_BRACKETS = re.compile(r"\([^()\n]+\)")
_QUOTATION = re.compile("|".join(f"{o}[^{o}{c}\n]+{c}" for o, c in QUOTES))
_CONTRACTION = re.compile(
    r"\b(?:(?:it|he|she|that|this|what|who|where|when|how|why|there|here|let)['’]s"
    r"|[^\W\d_]+n['’]t|[^\W\d_]+['’](?:re|ve|ll|d|m))\b",
    re.IGNORECASE,
)
"""a possessive, as in `Ann's`, is none"""
_HYPHENATED = re.compile(r"(?<![\w-])[^\W_]+(?:[-\u2011][^\W\d_]+)+(?![\w-])")
_ENDS = ".!?…。।؟"
_FULL_STOP = re.compile("[。।۔]")
_STYLES = {
    "snake": re.compile(r"[a-z]+(?:_[a-z0-9]+)+"),
    "kebab": re.compile(r"[a-z]+(?:-[a-z0-9]+)+"),
    "camel": re.compile(r"[a-z]+(?:[A-Z][a-z0-9]+)+"),
    "pascal": re.compile(r"(?:[A-Z][a-z0-9]+){2,}"),
    "constant": re.compile(r"[A-Z]+(?:_[A-Z0-9]+)+"),
}


def case(reply: str, *, case: Literal["lower", "upper", "title"]) -> bool:
    """Every word in lower case, upper case, or with only its first letter upper; words
    of a script without capitals aside."""
    tests: Mapping[str, Callable[[str], bool]]
    tests = {"lower": str.islower, "upper": str.isupper, "title": _is_title}
    found = [word for word in spelled_words_of(reply) if word.lower() != word.upper()]
    return bool(found) and all(tests[case](word) for word in found)


def _is_title(word: str) -> bool:
    """Unlike `str.istitle`, also of `Don't`, which is one word, and of `1st`."""
    begins = word[0].istitle() or word[0].isdigit()
    return begins and not any(letter.isupper() for letter in word[1:])


def sentence_case(reply: str) -> bool:
    """Every sentence begins with a capital letter."""
    firsts = [spelled_words_of(sentence)[:1] for sentence in sentences_of(reply)]
    return bool(firsts) and all(first and first[0][0].isupper() for first in firsts)


def alternating_case(reply: str) -> bool:
    """Words in capitals and words in small letters take turns."""
    found = spelled_words_of(reply)
    turns = [(word.isupper(), word.islower()) for word in found]
    first = turns[0] if turns else (False, False)
    other = (first[1], first[0])
    return (
        len(found) > 1
        and any(first)
        and turns == [(first, other)[i % 2] for i in range(len(turns))]
    )


def naming_style(
    reply: str, *, style: Literal["snake", "kebab", "camel", "pascal", "constant"]
) -> bool:
    """The reply is one name of at least two parts: snake_case, kebab-case, camelCase, PascalCase or
    CONSTANT_CASE."""
    return _STYLES[style].fullmatch(reply.strip()) is not None


@bounded
def capital_words(reply: str) -> int:
    """How many words are all in capitals; of one letter, too."""
    return sum(word.isupper() for word in spelled_words_of(reply))


@bounded
def capital_letters(reply: str) -> int:
    """How many capital letters there are."""
    return sum(character.isupper() for character in reply)


@bounded
def capitalized_words(reply: str) -> int:
    """How many words begin with a capital letter."""
    return sum(word[0].isupper() for word in spelled_words_of(reply))


@bounded
def mark_count(reply: str, *, mark: str) -> int:
    """How often the mark occurs, e.g. `;`."""
    return reply.count(mark)


def no_marks(reply: str, *, marks: str) -> bool:
    """None of these characters occurs, e.g. `,;`."""
    return not set(marks) & set(reply)


def no_punctuation(reply: str) -> bool:
    """The reply has letters, digits and white space only."""
    return _WORDS_AND_SPACE.fullmatch(reply) is not None


def each_sentence_ends_with(reply: str, *, mark: Literal[".", "!", "?"]) -> bool:
    """Every sentence ends with the mark, once."""
    found = [_FULL_STOP.sub(".", end) for _, end in ended_sentences_of(reply)]
    return bool(found) and set(found) == {mark}


def ends_alternate(reply: str) -> bool:
    """No two sentences after each other end with the same mark."""
    found = [end[-1:] for _, end in ended_sentences_of(reply)]
    return len(found) > 1 and all(a != b for a, b in pairwise(found))


@bounded
def questions(reply: str) -> int:
    """How many sentences are questions."""
    return sum("?" in end or "؟" in end for _, end in ended_sentences_of(reply))


@bounded
def exclamations(reply: str) -> int:
    """How many sentences are exclamations."""
    return sum("!" in end for _, end in ended_sentences_of(reply))


def in_quotation_marks(reply: str) -> bool:
    """The whole reply stands in double quotation marks."""
    text = reply.strip()
    inner, ends = text[1:-1], text[:1] + text[-1:]
    return ends in QUOTES and has_text(inner) and not set(inner) & set(ends)


@bounded
def quotations(reply: str) -> int:
    """How many parts stand in double quotation marks."""
    return sum(has_text(found) for found in _QUOTATION.findall(reply))


@bounded
def placeholders(reply: str) -> int:
    """How many placeholders in square brackets there are, e.g. `[address]`."""
    return len(_PLACEHOLDER.findall(reply))


@bounded
def parentheses(reply: str) -> int:
    """How many parts stand in round brackets."""
    return sum(has_text(found) for found in _BRACKETS.findall(reply))


@bounded
def ellipses(reply: str) -> int:
    """How often three dots stand, and not more."""
    return len(re.findall(r"(?<!\.)\.{3}(?!\.)|…", reply))


@bounded
def emojis(reply: str) -> int:
    """How many emojis there are."""
    return sum(_EMOJI.search(seen) is not None for seen in regex.findall(r"\X", reply))


def no_emoji(reply: str) -> bool:
    """There is no emoji."""
    return not _EMOJI.search(reply)


def emoji_ends_each_sentence(reply: str) -> bool:
    """After every sentence stands an emoji."""
    pieces = re.split(rf"[{_ENDS}]+[\"”’')*_]*(?!\w)", reply)
    after, last = [piece.strip() for piece in pieces[1:]], pieces[-1].strip()
    return bool(after) and all(map(_EMOJI.match, after)) and bool(_ONLY_EMOJIS.fullmatch(last))


def no_digits(reply: str) -> bool:
    """There is no digit."""
    return not any(character.isdigit() for character in reply)


@bounded
def digits(reply: str) -> int:
    """How many digits there are."""
    return sum(character.isdigit() for character in reply)


def ascii_only(reply: str) -> bool:
    """There are only the characters of ASCII."""
    return reply.isascii()


def no_contractions(reply: str) -> bool:
    """No word is short for two, as `don't` is."""
    return bool(words_of(reply)) and not _CONTRACTION.search(reply)


@bounded
def contractions(reply: str) -> int:
    """How many words are short for two, as `don't` is."""
    return len(_CONTRACTION.findall(reply))


@bounded
def hyphenated_words(reply: str) -> int:
    """How many words are joined by hyphens."""
    return len(_HYPHENATED.findall(reply))


def lines_end_without_mark(reply: str) -> bool:
    """No line ends with a mark of punctuation."""
    found = [line.rstrip() for line in lines_of(reply)]
    return bool(found) and not any(category(line[-1]).startswith("P") for line in found)


MARK_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        case,
        sentence_case,
        alternating_case,
        naming_style,
        capital_words,
        capital_letters,
        capitalized_words,
        mark_count,
        no_marks,
        no_punctuation,
        each_sentence_ends_with,
        ends_alternate,
        questions,
        exclamations,
        in_quotation_marks,
        quotations,
        placeholders,
        parentheses,
        ellipses,
        emojis,
        no_emoji,
        emoji_ends_each_sentence,
        no_digits,
        digits,
        ascii_only,
        no_contractions,
        contractions,
        hyphenated_words,
        lines_end_without_mark,
    )
}
