"""Constraints on how a reply and its parts begin and end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from unicodedata import category

from infra.errors import InputError
from infra.prose.plain_text import (
    lines_of,
    paragraphs_of,
    spelled_words_of,
    without_mark,
    words_of,
)
from infra.prose.sentence_ends import sentences_of
from infra.prose.whole_words import begins_with_word, ends_with_word
from rewards.constraints.word_kinds import sought


def starts_with(reply: str, *, text: str) -> bool:
    """The reply begins with the text, to the letter."""
    return reply.startswith(text)


def ends_with(reply: str, *, text: str) -> bool:
    """The reply ends with the text, to the letter."""
    return reply.rstrip("\n").endswith(text)


def ends_with_phrase(reply: str, *, text: str) -> bool:
    """The reply ends with the text, capitals and white space after it or not."""
    ends, said = (part.strip().strip('"').lower().replace("’", "'") for part in (text, reply))
    return bool(ends) and said.endswith(ends)


def first_word(reply: str, *, word: str) -> bool:
    """The first word is this one."""
    return begins_with_word(reply, *sought([word]))


def last_word(reply: str, *, word: str) -> bool:
    """The last word is this one."""
    return ends_with_word(reply, *sought([word]))


def first_and_last_word_equal(reply: str) -> bool:
    """The first of several words is the last one, too."""
    found = [word.lower() for word in words_of(without_mark(reply))]
    return len(found) > 1 and found[0] == found[-1]


def paragraph_starts(reply: str, *, number: int, word: str) -> bool:
    """The first word of the paragraph of this number, from 1, is this one."""
    return _first_of(paragraphs_of(reply), number, word)


def sentence_starts(reply: str, *, number: int, word: str) -> bool:
    """The first word of the sentence of this number, from 1, is this one."""
    return _first_of(sentences_of(reply), number, word)


def each_sentence_starts(reply: str, *, word: str) -> bool:
    """Every sentence begins with this word."""
    return _all_begin(sentences_of(reply), word)


def each_paragraph_starts(reply: str, *, word: str) -> bool:
    """Every paragraph begins with this word."""
    return _all_begin(paragraphs_of(reply), word)


def sentences_start_differently(reply: str) -> bool:
    """No two of at least two sentences begin with the same word."""
    found = [_word_at(words_of(sentence), 0) for sentence in sentences_of(reply)]
    return len(found) > 1 and len(set(found)) == len(found)


def lines_start_with(reply: str, *, text: str) -> bool:
    """Every line that is not empty begins with the text."""
    found = lines_of(reply)
    return bool(found) and all(line.lstrip().startswith(text) for line in found)


def lines_end_with(reply: str, *, text: str) -> bool:
    """Every line that is not empty ends with the text."""
    found = lines_of(reply)
    return bool(found) and all(line.rstrip().endswith(text) for line in found)


def sentence_chain(reply: str) -> bool:
    """Each of at least two sentences begins with the last word of the one before it."""
    found = [words_of(sentence) for sentence in sentences_of(reply)]
    pairs = pairwise(found)
    return len(found) > 1 and all(_word_at(a, -1) == _word_at(b, 0) != "" for a, b in pairs)


def postscript(reply: str, *, mark: str = "P.S.") -> bool:
    """A line of the last paragraph begins with the mark, capitals or not, and text follows it."""
    last = paragraphs_of(reply)[-1:]
    lines = [line.strip(" \t*_").lower() for line in last[0].splitlines()] if last else []
    mark = mark.lower()
    at = next((i for i, line in enumerate(lines) if line.startswith(mark)), None)
    has_text = at is not None and bool(words_of(" ".join(lines[at:]).removeprefix(mark)))
    return has_text and len(words_of(reply)) > len(words_of(" ".join(lines[at:])))


def repeats_request(reply: str, *, request: str) -> bool:
    """The reply begins with the request, word for word, and goes on after it."""
    text, wanted = reply.strip(), request.strip()
    return text.lower().startswith(wanted.lower()) and bool(words_of(text[len(wanted) :]))


def greeting(reply: str, *, name: str) -> bool:
    """The first line greets the name, e.g. `Dear Ann,` or `Hello, Ann!`."""
    first = (lines_of(reply) or [""])[0].strip()
    greets = rf"(?:my )?(?:dear(?:est)?|hello|hi|hey|good \w+),? {re.escape(name)}(?!\w)"
    return re.match(greets, first, re.IGNORECASE) is not None


def signature(reply: str, *, name: str) -> bool:
    """The last line is the name alone, after text."""
    found = [line.strip() for line in lines_of(reply)]
    return len(found) > 1 and found[-1].strip("-–—*_. ") == name


def acrostic_of_lines(reply: str, *, word: str) -> bool:
    """The first letters of the lines spell the word."""
    return _spells(lines_of(reply), word)


def acrostic_of_sentences(reply: str, *, word: str) -> bool:
    """The first letters of the sentences spell the word."""
    return _spells(sentences_of(reply), word)


def acrostic_of_words(reply: str, *, word: str) -> bool:
    """The first letters of the words spell the word."""
    return _spells(spelled_words_of(reply), word)


def ends_with_question(reply: str) -> bool:
    """The reply ends with a question."""
    return re.search(r"[?؟][\s\"”’'*_)」』）]*\Z", reply) is not None


def ends_without_mark(reply: str) -> bool:
    """The last character is a letter or a digit."""
    return not category(reply.rstrip()[-1:] or ".").startswith("P")


def starts_and_ends_with_line(reply: str, *, text: str) -> bool:
    """The first and the last of at least three lines are the text alone."""
    found = [line.strip() for line in lines_of(reply)]
    return len(found) > 2 and found[0] == found[-1] == text


def _word_at(words: Sequence[str], index: int) -> str:
    return words[index].lower() if words else ""


def _first_of(parts: Sequence[str], number: int, word: str) -> bool:
    if number < 1:
        raise InputError(f"number: {number} is none; the first is 1")
    (wanted,) = sought([word])
    return number <= len(parts) and begins_with_word(parts[number - 1], wanted)


def _all_begin(parts: Sequence[str], word: str) -> bool:
    (wanted,) = sought([word])
    return bool(parts) and all(begins_with_word(part, wanted) for part in parts)


def _spells(parts: Sequence[str], word: str) -> bool:
    firsts = [_word_at(spelled_words_of(part), 0)[:1] for part in parts]
    return bool(word) and "".join(firsts) == word.lower() and len(firsts) == len(word)


PLACE_KINDS: Mapping[str, Callable[..., bool]] = {
    check.__name__: check
    for check in (
        starts_with,
        ends_with,
        ends_with_phrase,
        first_word,
        last_word,
        first_and_last_word_equal,
        paragraph_starts,
        sentence_starts,
        each_sentence_starts,
        each_paragraph_starts,
        sentences_start_differently,
        lines_start_with,
        lines_end_with,
        sentence_chain,
        postscript,
        repeats_request,
        greeting,
        signature,
        acrostic_of_lines,
        acrostic_of_sentences,
        acrostic_of_words,
        ends_with_question,
        ends_without_mark,
        starts_and_ends_with_line,
    )
}
