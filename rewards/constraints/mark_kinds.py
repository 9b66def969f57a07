"""Constraints on punctuation, capitals and other signs of a reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Literal

import regex

from infra.errors import InputError
from rewards.constraints.bounds import bounded
from rewards.text import lines_of, sentences_of, words_of

_EMOJI = regex.compile(r"\p{Emoji_Presentation}|\p{Extended_Pictographic}")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_BRACKETS = re.compile(r"\([^()\n]+\)")
_QUOTATION = re.compile(r"\"[^\"\n]+\"|“[^“”\n]+”")
_CONTRACTION = re.compile(r"[^\W\d_]['’](?:s|t|re|ve|ll|d|m)\b", re.IGNORECASE)
_HYPHENATED = re.compile(r"(?<![\w-])[^\W\d_]+(?:-[^\W\d_]+)+(?![\w-])")
_ENDS = ".!?"
_STYLES = {
    "snake": re.compile(r"[a-z]+(?:_[a-z0-9]+)+"),
    "kebab": re.compile(r"[a-z]+(?:-[a-z0-9]+)+"),
    "camel": re.compile(r"[a-z]+(?:[A-Z][a-z0-9]+)+"),
    "pascal": re.compile(r"(?:[A-Z][a-z0-9]+){2,}"),
    "constant": re.compile(r"[A-Z]+(?:_[A-Z0-9]+)+"),
}


def case(reply: str, *, case: Literal["lower", "upper", "title"]) -> bool:
    """Every word in lower case, upper case, or with only its first letter upper."""
    tests: Mapping[str, Callable[[str], bool]]
    tests = {"lower": str.islower, "upper": str.isupper, "title": _is_title}
    if case not in tests:
        raise InputError(f"case {case!r} is unknown; allowed: {', '.join(tests)}")
    found = words_of(reply)
    return bool(found) and all(tests[case](word) for word in found)


def _is_title(word: str) -> bool:
    """Unlike `str.istitle`, also of `Don't`, which is one word."""
    return word[0].istitle() and not any(letter.isupper() for letter in word[1:])


def sentence_case(reply: str) -> bool:
    """Every sentence begins with a capital letter."""
    firsts = [words_of(sentence)[:1] for sentence in sentences_of(reply)]
    return bool(firsts) and all(first and first[0][0].isupper() for first in firsts)


def alternating_case(reply: str) -> bool:
    """Words in capitals and words in small letters take turns."""
    found = words_of(reply)
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
    if style not in _STYLES:
        raise InputError(f"style {style!r} is unknown; allowed: {', '.join(_STYLES)}")
    return _STYLES[style].fullmatch(reply.strip()) is not None


@bounded
def capital_words(reply: str) -> int:
    """How many words are all in capitals; of one letter, too."""
    return sum(word.isupper() for word in words_of(reply))


@bounded
def capital_letters(reply: str) -> int:
    """How many capital letters there are."""
    return sum(character.isupper() for character in reply)


@bounded
def capitalized_words(reply: str) -> int:
    """How many words begin with a capital letter."""
    return sum(word[0].isupper() for word in words_of(reply))


@bounded
def mark_count(reply: str, *, mark: str) -> int:
    """How often the mark occurs, e.g. `;`."""
    return reply.count(mark)


def no_marks(reply: str, *, marks: str) -> bool:
    """None of these characters occurs, e.g. `,;`."""
    return not set(marks) & set(reply)


def no_punctuation(reply: str) -> bool:
    """The reply has letters, digits and white space only."""
    return all(character.isalnum() or character.isspace() for character in reply)


def each_sentence_ends_with(reply: str, *, mark: Literal[".", "!", "?"]) -> bool:
    """Every sentence ends with the mark, once."""
    if mark not in _ENDS:
        raise InputError(f"mark {mark!r} ends no sentence; allowed: . ! ?")
    found = re.findall(rf"[{_ENDS}]+(?=\s|$)", reply.strip())
    return bool(found) and set(found) == {mark} and reply.strip().endswith(mark)


def ends_alternate(reply: str) -> bool:
    """No two sentences after each other end with the same mark."""
    found = re.findall(rf"[{_ENDS}]+(?=\s|$)", reply.strip())
    return len(found) > 1 and all(a != b for a, b in pairwise(found))


@bounded
def questions(reply: str) -> int:
    """How many sentences are questions."""
    return len(re.findall(r"\?(?=\s|$|[\"”')])", reply))


@bounded
def exclamations(reply: str) -> int:
    """How many sentences are exclamations."""
    return len(re.findall(r"!(?=\s|$|[\"”')])", reply))


def in_quotation_marks(reply: str) -> bool:
    """The whole reply stands in double quotation marks."""
    text = reply.strip()
    return len(text) > 2 and text[0] == text[-1] == '"' and bool(text[1:-1].strip())


@bounded
def quotations(reply: str) -> int:
    """How many parts stand in double quotation marks."""
    return len(_QUOTATION.findall(reply))


@bounded
def placeholders(reply: str) -> int:
    """How many placeholders in square brackets there are, e.g. `[address]`."""
    return len(_PLACEHOLDER.findall(reply))


@bounded
def parentheses(reply: str) -> int:
    """How many parts stand in round brackets."""
    return len(_BRACKETS.findall(reply))


@bounded
def ellipses(reply: str) -> int:
    """How often three dots stand, and not more."""
    return len(re.findall(r"(?<!\.)\.{3}(?!\.)|…", reply))


@bounded
def emojis(reply: str) -> int:
    """How many emojis there are."""
    return len(_EMOJI.findall(reply))


def no_emoji(reply: str) -> bool:
    """There is no emoji."""
    return not _EMOJI.search(reply)


def emoji_ends_each_sentence(reply: str) -> bool:
    """After every sentence stands an emoji."""
    pieces = [piece for piece in re.split(rf"[{_ENDS}]+", reply) if piece.strip()]
    begun = pieces[1:] + ([""] if reply.strip()[-1:] in _ENDS else [])
    return bool(begun) and all(_EMOJI.match(piece.strip()) for piece in begun)


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
    return bool(found) and all(line[-1].isalnum() for line in found)


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
