"""A constraint holds or not whatever a reply is written in: letters of any form, unseen characters,
apostrophes, scripts without spaces."""

from __future__ import annotations

import time
from typing import Any

import pytest

from infra.errors import InputError
from infra.prose.plain_text import plain, spelled_words_of, without_mark, words_of
from rewards.constraints.constraints import ALL_KINDS, obeys
from tests.unit.rewards.test_constraint_kinds import CASES
from tests.unit.rewards.test_constraints import CASES as FIRST

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("ca\u200bt", "cat"),  # a space of no width
        ("ca\u00adt", "cat"),  # a soft hyphen
        ("ca\u034ft", "cat"),  # a joiner that is a mark
        ("ca\ufe0ft", "cat"),  # a variation selector
        ("ca\u200dt", "cat"),
        ("c\x08at", "cat"),
        ("ｃａｔ", "cat"),
        ("𝐜𝐚𝐭", "cat"),
        ("ⓒⓐⓣ", "cat"),
        ("cafe\u0301", "café"),
        ("ｅ\u0301", "é"),
        ("ﬁsh", "fish"),
        ("２０２４", "2024"),
        ("a\u00a0b\u3000c", "a b c"),
        ("don’t don\u02bct don´t don＇t", "don't don't don't don't"),
        ("好，对！吗？", "好,对!吗?"),
        ("می\u200cخواهم", "میخواهم"),  # parts no words
        ("क्\u200dष", "क्ष"),
        ("\uffa0\u3164", ""),  # letters that are blank
    ],
)
def test_a_text_is_read_as_people_read_it(written: str, read: str) -> None:
    assert plain(written) == read
    assert plain(read) == read


@pytest.mark.parametrize(
    "text",
    ["👩\u200d💻 ❤\ufe0f\u200d🔥", "1\ufe0f\u20e3 ℹ\ufe0f ™", "so… x² ½ „a“ −5", "a\tb\r\nc"],
)
def test_what_people_tell_apart_stays_as_it_is(text: str) -> None:
    assert plain(text) == text


CAT, HAS_CAT = {"kind": "forbidden", "words": ["cat"]}, {"kind": "keyword", "word": "cat"}
CAT_FORMS = [
    "The cat's tail is long.", "ca\u200bt food", "ca\u00adt food", "ｃａｔ food", "𝐜𝐚𝐭 food",
    "CAT.", "ca\u2060t", "ca\u034ft food", "_cat_", "cat-like", "the cat’s",
]  # fmt: skip


@pytest.mark.parametrize("reply", CAT_FORMS)
def test_a_word_is_found_in_whatever_form(reply: str) -> None:
    assert not obeys(reply, CAT)
    assert obeys(reply, HAS_CAT)


@pytest.mark.parametrize("reply", ["cats", "concat", "c at", "cat3", "a ca", "scat, cats"])
def test_a_part_of_a_word_is_none(reply: str) -> None:
    assert obeys(reply, CAT)
    assert not obeys(reply, HAS_CAT)


@pytest.mark.parametrize(
    ("reply", "constraint"),
    [
        ("The garden's gate", {"kind": "keyword", "word": "garden"}),
        ("我喜欢猫和狗", {"kind": "keyword", "word": "猫"}),
        ("고양이가 오고 고양이들을 본다", {"kind": "keyword", "word": "고양이", "at_least": 2}),
        ("나는 학생입니다", {"kind": "first_word", "word": "나"}),
        ("나는 학생입니다", {"kind": "last_word", "word": "학생"}),
        ("학생이었습니다", {"kind": "keyword", "word": "학생"}),
        ("كتابٌ جميل", {"kind": "keyword", "word": "كتاب"}),
        ("שָׁלוֹם", {"kind": "keyword", "word": "שלום"}),
        ("2024年1月1日です。", {"kind": "numbers", "exactly": 3}),
        ("3월 5일, 2024년", {"kind": "years", "exactly": 1}),
        ("5km, a2 and b3c", {"kind": "numbers", "exactly": 0}),
        ("hello 你好", {"kind": "case", "case": "lower"}),
        ("나라가 크다", {"kind": "forbidden", "words": ["나"]}),
        ("İstanbul", {"kind": "keyword", "word": "istanbul"}),
        ("«Bonjour»", {"kind": "in_quotation_marks"}),
        ("Er sagte „Hallo“.", {"kind": "quotes", "text": "Hallo"}),
        ("「はい」と「いいえ」", {"kind": "quotations", "exactly": 2}),
        ("Ärger Öl Zebra", {"kind": "alphabetical"}),
        ("ผมชอบแมวและหมา", {"kind": "keyword", "word": "แมว"}),
        ("わたしはネコがすき", {"kind": "all_words", "words": ["ネコ", "すき"]}),
        ("我喜欢猫和狗", {"kind": "words_in_order", "words": ["猫", "狗"]}),
        ("我喜欢黑猫", {"kind": "word_pair", "first": "黑", "second": "猫"}),
        ("我喜欢猫", {"kind": "first_word", "word": "我"}),
        ("我喜欢猫。", {"kind": "last_word", "word": "猫"}),
        ("猫和狗", {"kind": "allowed_words", "words": ["猫", "狗", "和"]}),
        ("l'eau est bonne", {"kind": "keyword", "word": "eau"}),
        ("J'ai bu l’eau.", {"kind": "last_word", "word": "eau"}),
        ("cafe\u0301", {"kind": "keyword", "word": "café"}),
        ("café", {"kind": "keyword", "word": "cafe\u0301"}),
        ("STRASSE hier", {"kind": "keyword", "word": "Straße"}),
        ("Cat's paws", {"kind": "first_word", "word": "cat"}),
        ("1. Cats sleep", {"kind": "first_word", "word": "cats"}),
        ("- 2024 was good", {"kind": "first_word", "word": "2024"}),
        ("cafe\u0301", {"kind": "letter_count", "letter": "é", "exactly": 1}),
        ("cafe\u0301", {"kind": "length", "exactly": 4}),
        ("Ｃａｆé", {"kind": "capital_letters", "exactly": 1}),
        ("好嗎?好。", {"kind": "questions", "exactly": 1}),
        ("好吗？好。", {"kind": "questions", "exactly": 1}),
        ("好！走！", {"kind": "each_sentence_ends_with", "mark": "!"}),
        ("好。走。", {"kind": "each_sentence_ends_with", "mark": "."}),
        ("他问「好吗？」", {"kind": "ends_with_question"}),
        ("an ice\u00a0cream", {"kind": "phrase", "text": "ice cream"}),
        ("It’s so", {"kind": "starts_with", "text": "It's"}),
        ('{"＂": 1}', {"kind": "json_keys", "keys": ["＂"]}),
        ("In 2024 it rained", {"kind": "word_count", "exactly": 4}),
        ("It cost 1,000 or 3.5 more.", {"kind": "word_count", "exactly": 6}),
        ("In 2024. By 2025.", {"kind": "words_in_each_sentence", "exactly": 2}),
        ("in 12345 it", {"kind": "longest_word", "at_most": 2}),
        ("in 2024 it rained", {"kind": "case", "case": "lower"}),
        ("The 1st Day", {"kind": "case", "case": "title"}),
        ("1. ant\n2. bee", {"kind": "acrostic_of_lines", "word": "ab"}),
        ("1. Ant\n2. Bee", {"kind": "sentence_case"}),
        ("ant 5 bee", {"kind": "alphabetical"}),
        ("-5 + 8 = 3", {"kind": "right_equations", "exactly": 1}),
    ],
)  # fmt: skip
def test_a_reply_that_obeys(reply: str, constraint: dict[str, Any]) -> None:
    assert obeys(reply, constraint)


@pytest.mark.parametrize(
    ("reply", "constraint"),
    [
        ("我喜欢猫和狗", {"kind": "forbidden", "words": ["猫"]}),
        ("ผมชอบแมว", {"kind": "forbidden", "words": ["แมว"]}),
        ("l'eau est bonne", {"kind": "forbidden", "words": ["eau"]}),
        ("cafe\u0301", {"kind": "forbidden", "words": ["café"]}),
        ("an ice\u200b-cream", {"kind": "forbidden", "words": ["ice-cream"]}),
        ("an ice  cream", {"kind": "forbidden", "words": ["ice cream"]}),
        ("cafe\u0301", {"kind": "no_letter", "letter": "é"}),
        ("c\u00adaté", {"kind": "no_letter", "letter": "e\u0301"}),
        ("a\u200bb\u200bc\u200bd\u200be\u200bf", {"kind": "word_count", "at_least": 6}),
        ("猫和狗", {"kind": "allowed_words", "words": ["猫", "狗"]}),
        ("cat 5 dog", {"kind": "allowed_words", "words": ["cat", "dog"]}),
        ("It was in 2024", {"kind": "last_word", "word": "in"}),
        ("一，二", {"kind": "no_marks", "marks": ","}),
        ("I don\u02bct know", {"kind": "no_contractions"}),
        ("𝐇𝐞𝐥𝐥𝐨 мир", {"kind": "no_script", "script": "Latin"}),
        ("ｃａｔ", {"kind": "ascii_only"}),
        ("ca\u200bt", {"kind": "ascii_only"}),
        ("ｃａｔ", {"kind": "plain_latin"}),
        ("２", {"kind": "no_digits"}),
        ("so…", {"kind": "no_marks", "marks": "…"}),
        ("in the In 2024 and 2024", {"kind": "distinct"}),
        ("\u3164\uffa0", {"kind": "length", "at_least": 1}),
        ("w\u00ade go", {"kind": "no_first_person"}),
    ],
)
def test_a_reply_that_does_not(reply: str, constraint: dict[str, Any]) -> None:
    assert not obeys(reply, constraint)


def test_no_marks_tells_three_dots_from_their_sign() -> None:
    assert obeys("so.", {"kind": "no_marks", "marks": "…"})
    assert obeys("so…", {"kind": "no_marks", "marks": "."})


def test_a_word_that_nobody_sees_is_an_error() -> None:
    with pytest.raises(InputError, match="must not be empty"):
        obeys("a cat", {"kind": "mark_count", "mark": "\u200b", "exactly": 0})


def test_what_is_unseen_changes_no_verdict() -> None:
    """But for kinds that look at the characters themselves: data, ASCII, plain Latin."""
    cases = [(k, p, [good], [bad]) for k, p, good, bad in FIRST] + CASES
    to_the_letter = ("json", "csv", "yaml", "ascii", "plain_latin", "fenced")
    for kind, parameters, right, wrong in cases:
        if kind.startswith(to_the_letter):
            continue
        for replies, verdict in ((right, True), (wrong, False)):
            for reply in replies:
                hidden = "\u200b".join(reply) if reply.isascii() else reply + "\u200b"
                assert obeys(hidden, {"kind": kind, **parameters}) is verdict, (kind, reply)


def test_words_are_runs_of_letters_and_digits() -> None:
    said = "2 Cats don’t eat 1,000 v1.4.2 or 3.5; 1,2 on 2026-03-01: C3PO, x², l'eau _a_ 20%!"
    assert words_of(said) == [
        "2", "Cats", "don't", "eat", "1,000", "v1.4.2", "or", "3.5", "1", "2", "on", "2026", "03",
        "01", "C3PO", "x²", "l'eau", "a", "20",
    ]  # fmt: skip
    assert spelled_words_of(said) == [
        "Cats", "don't", "eat", "v1.4.2", "or", "on", "C3PO", "x²", "l'eau", "a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "text"),
    [("- cat", "cat"), ("2. cat", "cat"), ("+ cat", "cat"), ("-5 cats", "-5 cats"),
     ("3.5 cats", "3.5 cats"), ("14:05 sharp", "14:05 sharp"), ("2:cat", "cat"),
     ("*cat*", "*cat*")],
)  # fmt: skip
def test_the_mark_of_an_item_is_no_text(line: str, text: str) -> None:
    assert without_mark(line) == text


@pytest.mark.parametrize(
    "unit", ["e\u0301", "\u200b", "ｃ", "猫", "A. ", "U.S. ", "p.m. ", "1.", "1,", "…", "? ", "' ",
             "\u200d🎉", "a'", "- a\n", "。"],
)  # fmt: skip
def test_a_long_reply_takes_no_longer_than_reading_it(unit: str) -> None:
    reply = "a " + unit * (15_000 // len(unit)) + "!"
    for kind in ("forbidden", "word_pair", "allowed_words", "last_word", "sentence_count"):
        parameters = next(case[1] for case in (*FIRST, *CASES) if case[0] == kind)
        began = time.process_time()
        obeys(reply, {"kind": kind, **parameters})
        assert time.process_time() - began < 1, kind
    assert set(ALL_KINDS) >= {"forbidden", "word_pair"}
