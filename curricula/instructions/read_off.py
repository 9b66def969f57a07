"""Instructions that an answer happens to obey: each is found in the answer itself, so that however
many are asked for at once, none contradicts another."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from curricula.instructions.written_answers import Rule, counted
from engines.types import Json
from infra.prose.plain_text import (
    lines_of,
    paragraphs_of,
    plain,
    spelled_words_of,
    without_mark,
    words_of,
)
from infra.prose.sentence_ends import ended_sentences_of

_UNCLEAR = re.compile(r"\d[^\w\s]|\w-\w")
"""what some count as a word and some do not"""
_ITEM = re.compile(r"^[^\S\n]*(?:\d+[.)]|[-*+]) ", re.MULTILINE)
_ABSENT = ("zebra", "volcano", "sugar", "castle", "pirate", "thunder")
_RARE = "qxzjkv"


@dataclass(frozen=True, slots=True)
class _Text:
    """An answer taken apart."""

    whole: str
    words: Sequence[str]
    lower: Sequence[str]
    spelled: Sequence[str]
    """words that are no numbers"""
    sentences: Sequence[str]
    ends: Sequence[str]
    """marks with which they end"""
    lines: Sequence[str]
    paragraphs: Sequence[str]

    @classmethod
    def of(cls, text: str) -> _Text:
        text = plain(text)
        words, ended = words_of(text), ended_sentences_of(text)
        return cls(
            text,
            words,
            [word.lower() for word in words],
            spelled_words_of(text),
            [sentence for sentence, _ in ended],
            [end for _, end in ended],
            lines_of(text),
            paragraphs_of(text),
        )


def read_off(text: str, rng: random.Random, *, is_prose: bool) -> list[Rule]:
    """Every instruction that is found; of sentences and paragraphs only where there are some."""
    taken = _Text.of(text)
    if not taken.spelled:  # a number alone: what else it obeys says nothing
        return []
    found: list[Rule] = []
    for reader in (*_OF_ANY, *(_OF_PROSE if is_prose else ())):
        found += reader(taken, rng)
    return found


def _count(
    rng: random.Random, kind: str, number: int, noun: str, verb: str = "Use", **more: Json
) -> Rule:
    """So many of something: exactly, at least or at most."""
    slack = rng.randint(1, max(1, number // 5))
    bounds = {"exactly": number, "at_least": max(1, number - slack), "at_most": number + slack}
    name = rng.choice([*bounds])
    bound = bounds[name]
    wording = f"{verb} {name.replace('_', ' ')} {counted(bound, noun)}."
    return wording, {"kind": kind, name: bound, **more}


def _of_words(text: _Text, rng: random.Random) -> Iterator[Rule]:
    spelled = [word.lower() for word in text.spelled]
    longest = max(map(len, spelled), default=0)
    known = sorted({word for word in spelled if len(word) > 3 and "'" not in word})
    absent = rng.choice([word for word in _ABSENT if word not in text.lower])
    yield f"Do not use the word {absent}.", {"kind": "forbidden", "words": [absent]}
    if len(known) > 2:
        some: list[Json] = list(rng.sample(known, 2))
        first = next(word for word in text.lower if word in some)
        ordered: list[Json] = [first, *(word for word in some if word != first)]
        yield f"Use the word {some[0]}.", {"kind": "keyword", "word": some[0]}
        yield (
            f"Use both of the words {some[0]} and {some[1]}.",
            {"kind": "all_words", "words": some},
        )
        yield (
            f"Use the word {ordered[0]}, and after it somewhere {ordered[1]}.",
            {"kind": "words_in_order", "words": ordered},
        )
        either: list[Json] = [some[0], absent]
        yield f"Use one of the words {some[0]}, {absent}.", {"kind": "any_word", "words": either}
        if pairs := [pair for pair in pairwise(text.lower) if {*pair} <= {*spelled}]:
            first, second = rng.choice(pairs)
            yield (
                f"Have the word {second} directly follow {first}.",
                {"kind": "word_pair", "first": first, "second": second},
            )
        alike = Counter(word[0] for word in spelled).most_common(1)[0]
        yield (
            f"Begin at least {counted(alike[1], 'words')} with the letter {alike[0]}.",
            {"kind": "alliteration", "letter": alike[0], "at_least": alike[1]},
        )
    if rare := [letter for letter in _RARE if letter not in text.whole.lower()]:
        yield f"Do not use the letter {rare[0]}.", {"kind": "no_letter", "letter": rare[0]}
    letter = rng.choice("aeorst")
    number = text.whole.lower().count(letter)
    if number:
        yield _count(rng, "letter_count", number, f"times the letter {letter}", letter=letter)
    if longest:
        yield (
            f"Use no word of more than {longest} letters.",
            {"kind": "longest_word", "at_most": longest},
        )
    different = len(set(text.lower))
    if different > 1:
        yield _count(rng, "distinct_words", different, "different words")
        if not _UNCLEAR.search(text.whole):
            yield _count(rng, "word_count", len(text.words), "words")
    if len(text.lower) > 1:
        if different == len(text.lower):
            yield "Use no word twice.", {"kind": "distinct"}
        if all(a != b for a, b in pairwise(text.lower)):
            yield "Never write the same word twice in a row.", {"kind": "no_word_twice_in_a_row"}
        most = Counter(text.lower).most_common(1)[0][1]
        if most > 1:  # else it is said above
            yield (
                f"Use no word more than {most} times.",
                {"kind": "most_repeated_word", "at_most": most},
            )


def _of_length(text: _Text, rng: random.Random) -> Iterator[Rule]:
    yield _count(rng, "length", len(text.whole.strip()), "characters, spaces included", "Write")
    yield _count(rng, "item_count", len(text.lines), "lines, empty ones not counted", "Write")
    letters = sum(character.isalpha() for character in text.whole)
    if letters:
        yield _count(rng, "letters", letters, "letters", "Write")
    widest = max(map(len, text.lines))
    yield (
        f"Let no line have more than {widest} characters.",
        {"kind": "characters_in_each_line", "at_most": widest},
    )
    in_lines = [len(words_of(line)) for line in text.lines]
    yield (
        f"Put at most {counted(max(in_lines), 'words')} in a line.",
        {"kind": "words_in_each_line", "at_most": max(in_lines)},
    )
    if "\n" not in text.whole:
        yield "Write one line only.", {"kind": "one_line"}
    if len(text.paragraphs) == 1:
        yield "Write one paragraph, without an empty line.", {"kind": "one_paragraph"}


def _of_sentences(text: _Text, rng: random.Random) -> Iterator[Rule]:
    sizes = [len(words_of(sentence)) for sentence in text.sentences]
    yield _count(rng, "sentence_count", len(sizes), "sentences", "Write")
    yield _count(rng, "paragraph_count", len(text.paragraphs), "paragraphs", "Write")
    yield (
        f"Let no sentence have more than {counted(max(sizes), 'words')}.",
        {"kind": "words_in_each_sentence", "at_most": max(sizes)},
    )
    parts = [len(_Text.of(part).sentences) for part in text.paragraphs]
    yield (
        f"Let no paragraph have more than {counted(max(parts), 'sentences')}.",
        {"kind": "sentences_in_each_paragraph", "at_most": max(parts)},
    )
    blocks = [len(words_of(part)) for part in text.paragraphs]
    yield (
        f"Write at least {counted(min(blocks), 'words')} in each paragraph.",
        {"kind": "words_in_each_paragraph", "at_least": min(blocks)},
    )
    if len(sizes) > 1 and all(a < b for a, b in pairwise(sizes)):
        yield (
            "Let each sentence have more words than the one before.",
            {"kind": "growing_sentences"},
        )
    if len(sizes) > 1 and all(a > b for a, b in pairwise(sizes)):
        yield (
            "Let each sentence have fewer words than the one before.",
            {"kind": "shrinking_sentences"},
        )
    if len(sizes) > 1 and len(set(sizes)) == 1:
        yield "Give all of your sentences the same number of words.", {"kind": "equal_sentences"}
    number = rng.randint(1, len(text.sentences))
    words = [word for word in spelled_words_of(text.sentences[number - 1]) if len(word) > 3]
    if words:
        word = rng.choice(words).lower()
        yield (
            f"Use the word {word} in sentence {number}.",
            {"kind": "keyword_in_sentence", "word": word, "number": number},
        )
    last = [word for word in spelled_words_of(text.paragraphs[-1]) if len(word) > 3]
    if last:
        yield (
            f"Use the word {last[0].lower()} in the last paragraph.",
            {"kind": "keyword_in_paragraph", "word": last[0].lower(), "number": -1},
        )
    for kind, parts_of, noun in (
        ("keyword_in_each_sentence", text.sentences, "sentence"),
        ("keyword_in_each_paragraph", text.paragraphs, "paragraph"),
    ):
        shared = set.intersection(*({w.lower() for w in words_of(p)} for p in parts_of))
        if len(parts_of) > 1 and shared:
            word = min(shared)
            yield f"Use the word {word} in every {noun}.", {"kind": kind, "word": word}


def _of_places(text: _Text, rng: random.Random) -> Iterator[Rule]:
    first, last = words_of(without_mark(text.whole))[0].lower(), text.lower[-1]
    yield f"Begin with the word {first}.", {"kind": "first_word", "word": first}
    yield f"End with the word {last}.", {"kind": "last_word", "word": last}
    begin = text.whole.split()[0]
    if not text.whole[0].isspace():
        yield f"Begin exactly with `{begin}`.", {"kind": "starts_with", "text": begin}
    end = " ".join(text.whole.split(" ")[-2:])
    if "\n" not in end:
        yield (
            f"End with the words `{end}`, in capitals or not.",
            {"kind": "ends_with_phrase", "text": end},
        )
        yield f"End exactly with `{end}`.", {"kind": "ends_with", "text": end}
    if first == last and len(text.lower) > 1:
        yield "Let your first word also be your last.", {"kind": "first_and_last_word_equal"}
    if text.whole[-1].isalnum():
        yield "End without a mark of punctuation.", {"kind": "ends_without_mark"}


def _of_places_in_prose(text: _Text, rng: random.Random) -> Iterator[Rule]:
    for kind, parts, noun in (
        ("sentence_starts", text.sentences, "sentence"),
        ("paragraph_starts", text.paragraphs, "paragraph"),
    ):
        number = rng.randint(1, len(parts))
        words = words_of(without_mark(parts[number - 1]))
        if words:
            word = words[0].lower()
            yield (
                f"Begin {noun} {number} with the word {word}.",
                {"kind": kind, "number": number, "word": word},
            )
    firsts = [(words_of(s) or [""])[0].lower() for s in text.sentences]
    if len(firsts) > 1 and len(set(firsts)) == len(firsts):
        yield "Begin no two sentences with the same word.", {"kind": "sentences_start_differently"}
    if len(firsts) > 1 and len(set(firsts)) == 1 and firsts[0]:
        yield (
            f"Begin every sentence with the word {firsts[0]}.",
            {"kind": "each_sentence_starts", "word": firsts[0]},
        )
    if text.whole.endswith("?"):
        yield "End with a question.", {"kind": "ends_with_question"}


def _of_marks(text: _Text, rng: random.Random) -> Iterator[Rule]:
    whole = text.whole
    for mark, noun in ((",", "commas"), (";", "semicolons"), ("!", "exclamation marks")):
        if number := whole.count(mark):
            yield _count(rng, "mark_count", number, noun, mark=mark)
        else:
            yield f"Use no {noun}.", {"kind": "no_marks", "marks": mark}
    if number := sum(character.isdigit() for character in whole):
        yield _count(rng, "digits", number, "digits")
    else:
        yield "Use no digits.", {"kind": "no_digits"}
    capitals = sum(character.isupper() for character in whole)
    if capitals:
        yield _count(rng, "capital_letters", capitals, "capital letters")
    if loud := sum(word.isupper() for word in text.spelled):
        yield _count(rng, "capital_words", loud, "words all in capitals")
    if all(word.islower() for word in text.spelled):
        yield "Use small letters only.", {"kind": "case", "case": "lower"}
    if all(word.isupper() for word in text.spelled):
        yield "Write everything in capitals.", {"kind": "case", "case": "upper"}
    if "(" in whole and "\n(" not in whole and whole.count("(") == whole.count(")") == 1:
        yield "Put something in round brackets.", {"kind": "parentheses", "at_least": 1}
    if whole.count('"') == 2 and whole[0] != '"' and "\n" not in whole:
        yield "Put something in double quotation marks.", {"kind": "quotations", "at_least": 1}
    if re.search(r"(?<![\w-])[a-z]+-[a-z]+(?![\w-])", whole):
        yield "Use a word that is joined by a hyphen.", {"kind": "hyphenated_words", "at_least": 1}
    if "🎉" not in whole:
        yield "Use no emoji.", {"kind": "no_emoji"}
    if whole.isascii():
        yield "Use only the characters of ASCII.", {"kind": "ascii_only"}
    if "'" not in whole and "’" not in whole:
        yield "Use no words that are short for two, such as don't.", {"kind": "no_contractions"}
    if not set(whole) & set("*`#[>_|=~") and not _ITEM.search(whole):
        yield "Use no Markdown.", {"kind": "no_markdown"}


def _of_marks_in_prose(text: _Text, rng: random.Random) -> Iterator[Rule]:
    ends = text.ends
    if len(set(ends)) == 1 and text.whole.endswith(ends[0]) and ends[0] in (".", "!", "?"):
        yield (
            f"End every sentence with `{ends[0]}`.",
            {"kind": "each_sentence_ends_with", "mark": ends[0]},
        )
    if len(ends) > 1 and all(a[-1:] != b[-1:] for a, b in pairwise(ends)):
        yield "End no two sentences in a row with the same mark.", {"kind": "ends_alternate"}
    for kind, mark, noun in (
        ("questions", "?", "questions"),
        ("exclamations", "!", "exclamations"),
    ):
        if number := sum(mark in end for end in ends):
            yield _count(rng, kind, number, noun, "Write")
    if all((spelled_words_of(s) or ["a"])[0][0].isupper() for s in text.sentences):
        yield "Begin every sentence with a capital letter.", {"kind": "sentence_case"}


def _of_contents(text: _Text, rng: random.Random) -> Iterator[Rule]:
    if not {"i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves"} & {
        re.split(r"['’]", word)[0] for word in text.lower
    }:
        yield "Do not speak of yourself: no I, no we.", {"kind": "no_first_person"}
    if percent := re.findall(r"(?<![\w.])\d+%", text.whole):
        yield _count(rng, "percentages", len(percent), "percentages", "Name")
    if re.search(r"(?<![\w.,-])1[89]\d\d(?![\w]|[.,]\d)", text.whole):
        yield "Name a year of four digits.", {"kind": "years", "at_least": 1}
    if all(character.isascii() for character in text.whole if character.isalpha()):
        yield "Use only the letters a to z.", {"kind": "plain_latin"}
        yield "Write in Latin letters only.", {"kind": "only_script", "script": "Latin"}
        other = rng.choice(("Greek", "Cyrillic", "Arabic", "Han"))
        yield f"Use no letter of {other} script.", {"kind": "no_script", "script": other}


_Reader = Callable[[_Text, random.Random], Iterator[Rule]]
_OF_ANY: Sequence[_Reader] = (_of_words, _of_length, _of_places, _of_marks, _of_contents)
_OF_PROSE: Sequence[_Reader] = (_of_sentences, _of_places_in_prose, _of_marks_in_prose)
