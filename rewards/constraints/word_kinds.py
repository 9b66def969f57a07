"""Constraints on which words and letters a reply is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from unicodedata import normalize

from infra.errors import InputError
from infra.prose.plain_text import has_text, paragraphs_of, spelled_words_of, words_of
from infra.prose.sentence_ends import sentences_of
from infra.prose.whole_words import (
    count_word,
    has_word,
    have_neighbours,
    have_order,
    is_made_of,
)
from rewards.constraints.bounds import bounded, within


def keyword(
    reply: str, *, word: str, at_least: int | None = None, at_most: int | None = None
) -> bool:
    """The reply contains the word, as often as required; without a number at least once."""
    if at_least is None and at_most is None:
        at_least = 1
    (wanted,) = sought([word])
    return within(count_word(reply, wanted), at_least=at_least, at_most=at_most)


def forbidden(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains none of the words."""
    return not any_word(reply, words=words) and bool(words_of(reply))


def allowed_words(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains no other words."""
    known, found = _single(words), words_of(reply)
    return bool(found) and all(is_made_of(word, known) for word in found)


def all_words(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains every one of the words."""
    return all(has_word(reply, word) for word in sought(words))


def any_word(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains at least one of the words."""
    return any(has_word(reply, word) for word in sought(words))


def words_in_order(reply: str, *, words: Sequence[str]) -> bool:
    """The reply contains the words in this order, others between them or not."""
    return have_order(reply, sought(words))


def word_pair(reply: str, *, first: str, second: str) -> bool:
    """One word directly follows the other."""
    return have_neighbours(reply, *sought([first, second]))


def phrase(reply: str, *, text: str) -> bool:
    """The reply contains the text, to the letter."""
    return text in reply


@bounded
def phrase_count(reply: str, *, text: str) -> int:
    """How often the reply contains the text, to the letter."""
    return reply.count(text)


def keyword_in_each_sentence(reply: str, *, word: str) -> bool:
    """Every sentence contains the word."""
    return _in_each(sentences_of(reply), word)


def keyword_in_each_paragraph(reply: str, *, word: str) -> bool:
    """Every paragraph contains the word."""
    return _in_each(paragraphs_of(reply), word)


def keyword_in_sentence(reply: str, *, word: str, number: int) -> bool:
    """The sentence of this number, from 1, or from the end if negative, contains the word."""
    return _in_part(sentences_of(reply), word, number)


def keyword_in_paragraph(reply: str, *, word: str, number: int) -> bool:
    """The paragraph of this number, from 1, or from the end if negative, contains the word."""
    return _in_part(paragraphs_of(reply), word, number)


@bounded
def letter_count(reply: str, *, letter: str) -> int:
    """How often the letter occurs, small or capital."""
    return reply.lower().count(letter.lower())


def no_letter(reply: str, *, letter: str) -> bool:
    """The letter does not occur, small or capital."""
    return bool(words_of(reply)) and letter.lower() not in reply.lower()


@bounded
def alliteration(reply: str, *, letter: str) -> int:
    """How many words begin with the letter."""
    return sum(word.lower().startswith(letter.lower()) for word in spelled_words_of(reply))


def each_starts_with(reply: str, *, text: str) -> bool:
    """Every word begins with the text."""
    return _each(reply, lambda word: word.startswith(text.lower()))


def each_ends_with(reply: str, *, text: str) -> bool:
    """Every word ends with the text."""
    return _each(reply, lambda word: word.endswith(text.lower()))


def each_contains_letter(reply: str, *, letter: str) -> bool:
    """Every word contains the letter."""
    return _each(reply, lambda word: letter.lower() in word)


def longest_word(reply: str, *, at_most: int) -> bool:
    """No word has more than `at_most` letters."""
    return _each(reply, lambda word: len(word) <= at_most)


def shortest_word(reply: str, *, at_least: int) -> bool:
    """No word has fewer than `at_least` letters."""
    return _each(reply, lambda word: len(word) >= at_least)


def distinct(reply: str) -> bool:
    """No word occurs twice."""
    found = [word.lower() for word in words_of(reply)]
    return bool(found) and len(set(found)) == len(found)


@bounded
def distinct_words(reply: str) -> int:
    """How many different words there are."""
    return len({word.lower() for word in words_of(reply)})


@bounded
def most_repeated_word(reply: str) -> int:
    """How often the most frequent word occurs."""
    return max(Counter(word.lower() for word in words_of(reply)).values(), default=0)


def no_word_twice_in_a_row(reply: str) -> bool:
    """No word is followed by itself."""
    found = [word.lower() for word in words_of(reply)]
    return bool(found) and all(first != second for first, second in pairwise(found))


def alphabetical(reply: str) -> bool:
    """The words are in alphabetical order."""
    found = [_without_accents(word) for word in spelled_words_of(reply)]
    return len(found) > 1 and found == sorted(found)


def reverse_alphabetical(reply: str) -> bool:
    """The words are in the order of the alphabet read backwards."""
    found = [_without_accents(word) for word in spelled_words_of(reply)]
    return len(found) > 1 and found == sorted(found, reverse=True)


def _without_accents(word: str) -> str:
    """Return small letters of the alphabet: `Ärger` stands beside `arm`."""
    return re.sub("[\u0300-\u036f]", "", normalize("NFD", word.lower()))


def growing_words(reply: str) -> bool:
    """Each word has more letters than the one before it."""
    lengths = [len(word) for word in spelled_words_of(reply)]
    return len(lengths) > 1 and all(first < second for first, second in pairwise(lengths))


def word_chain(reply: str) -> bool:
    """Each word begins with the last letter of the one before it."""
    found = [word.lower() for word in spelled_words_of(reply)]
    return len(found) > 1 and all(first[-1] == second[0] for first, second in pairwise(found))


@bounded
def palindromes(reply: str) -> int:
    """How many words of three letters or more read the same backwards."""
    found = [word.lower() for word in spelled_words_of(reply)]
    return sum(len(word) > 2 and word == word[::-1] for word in found)


def sought(words: Sequence[str]) -> Sequence[str]:
    """The words, or several in a row. Raises InputError for what no text can hold as a word."""
    for word in words:
        if not has_text(word):
            raise InputError(f"{word!r} is no word: it has no letter and no digit")
    return words


def _single(words: Sequence[str]) -> Sequence[str]:
    """The words. Raises InputError for what no reply can have as one word."""
    for word in words:
        if words_of(word) != [word.replace("’", "'")]:
            raise InputError(
                f"{word!r} is not one word; a word is a run of letters and digits, e.g. `don't`"
            )
    return words


def _each(reply: str, holds: Callable[[str], bool]) -> bool:
    found = [word.lower() for word in spelled_words_of(reply)]
    return bool(found) and all(holds(word) for word in found)


def _in_each(parts: Sequence[str], word: str) -> bool:
    return bool(parts) and all(keyword(part, word=word) for part in parts)


def _in_part(parts: Sequence[str], word: str, number: int) -> bool:
    if number == 0:
        raise InputError("number: 0 is none; write 1 for the first, -1 for the last")
    index = number - 1 if number > 0 else number
    return -len(parts) <= index < len(parts) and keyword(parts[index], word=word)


WORD_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        keyword,
        forbidden,
        allowed_words,
        all_words,
        any_word,
        words_in_order,
        word_pair,
        phrase,
        phrase_count,
        keyword_in_each_sentence,
        keyword_in_each_paragraph,
        keyword_in_sentence,
        keyword_in_paragraph,
        letter_count,
        no_letter,
        alliteration,
        each_starts_with,
        each_ends_with,
        each_contains_letter,
        longest_word,
        shortest_word,
        distinct,
        distinct_words,
        most_repeated_word,
        no_word_twice_in_a_row,
        alphabetical,
        reverse_alphabetical,
        growing_words,
        word_chain,
        palindromes,
    )
}
