"""Constraints on how long a reply and its parts are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from unicodedata import category

from infra.prose.plain_text import lines_of, paragraphs_of, spelled_words_of, words_of
from infra.prose.sentence_ends import sentences_of
from rewards.constraints.bounds import bounded, bounded_in_each


@bounded
def word_count(reply: str) -> int:
    """How many words there are."""
    return len(words_of(reply))


@bounded
def sentence_count(reply: str) -> int:
    """How many sentences there are."""
    return len(sentences_of(reply))


@bounded
def paragraph_count(reply: str) -> int:
    """How many blocks with an empty line between them there are."""
    return len(paragraphs_of(reply))


@bounded
def item_count(reply: str) -> int:
    """How many lines are not empty."""
    return len(lines_of(reply))


@bounded
def length(reply: str) -> int:
    """How many characters there are that can be seen, and white space between them."""
    return sum(category(character) != "Cf" for character in reply.strip())


@bounded
def letters(reply: str) -> int:
    """How many letters there are."""
    return sum(character.isalpha() for character in reply)


@bounded
def average_word_length(reply: str) -> float:
    """How many letters a word has on average."""
    found = spelled_words_of(reply)
    return fmean(len(word) for word in found) if found else 0.0


@bounded_in_each
def words_in_each_sentence(reply: str) -> list[list[str]]:
    """Every sentence has so many words."""
    return [words_of(part) for part in sentences_of(reply)]


@bounded_in_each
def words_in_each_paragraph(reply: str) -> list[list[str]]:
    """Every paragraph has so many words."""
    return [words_of(part) for part in paragraphs_of(reply)]


@bounded_in_each
def words_in_each_line(reply: str) -> list[list[str]]:
    """Every line that is not empty has so many words."""
    return [words_of(part) for part in lines_of(reply)]


@bounded_in_each
def sentences_in_each_paragraph(reply: str) -> list[list[str]]:
    """Every paragraph has so many sentences."""
    return [sentences_of(part) for part in paragraphs_of(reply)]


@bounded_in_each
def characters_in_each_line(reply: str) -> list[list[str]]:
    """Every line that is not empty has so many characters."""
    return [list(part) for part in lines_of(reply)]


def growing_sentences(reply: str) -> bool:
    """Each of at least two sentences has more words than the one before it."""
    return _grows([len(words_of(sentence)) for sentence in sentences_of(reply)])


def shrinking_sentences(reply: str) -> bool:
    """Each of at least two sentences has fewer words than the one before it."""
    return _grows([-len(words_of(sentence)) for sentence in sentences_of(reply)])


def growing_lines(reply: str) -> bool:
    """Each of at least two lines has more words than the one before it."""
    return _grows([len(words_of(line)) for line in lines_of(reply)])


def equal_sentences(reply: str) -> bool:
    """At least two sentences, all with the same number of words."""
    found = [len(words_of(sentence)) for sentence in sentences_of(reply)]
    return len(found) > 1 and len(set(found)) == 1


def _grows(lengths: Sequence[int]) -> bool:
    return len(lengths) > 1 and all(a < b for a, b in pairwise(lengths))


COUNT_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        word_count,
        sentence_count,
        paragraph_count,
        item_count,
        length,
        letters,
        average_word_length,
        words_in_each_sentence,
        words_in_each_paragraph,
        words_in_each_line,
        sentences_in_each_paragraph,
        characters_in_each_line,
        growing_sentences,
        shrinking_sentences,
        growing_lines,
        equal_sentences,
    )
}
