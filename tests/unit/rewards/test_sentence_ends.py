"""Where sentences end: at their marks, but not at short forms; before items and empty lines."""

from __future__ import annotations

from typing import Any

import pytest

from infra.prose.sentence_ends import ended_sentences_of, sentences_of
from rewards.constraints.constraints import obeys

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "text",
    [
        "The U.S. is big. Yes.", "The U.S. Army came. Yes.", "Washington, D.C. is big. Yes.",
        "J. Smith came. He left.", "George W. Bush won. Yes.", "J. R. R. Tolkien wrote. Yes.",
        "I. Newton wrote. Yes.", "We saw J.R.R. Tolkien. Yes.", "Dr. Smith came. He left.",
        "He met Prof. Ann Lee. Yes.", "I like cats, dogs, etc. and so on. Yes.",
        "He has cats, etc. Ann has none.", "We met at 5 p.m. Then we left.",
        "At 5 p.m. we left. Yes.", "At 5 p.m. Monday we left. Yes.",
        "Apple Inc. makes phones. Yes.",
        "He works for Apple Inc. They sell phones.", "She has a Ph.D. in maths. Yes.",
        "She has a Ph.D. Ann has none.", "See No. 5 there. Yes.", "No. I will not.",
        "In Fig. 3 we see it. Yes.", "On Jan. 5 it came. Yes.", "He likes art. 5 came.",
        "Smith et al. wrote it. Yes.", "Take option A. Option B is bad.",
        "Use it, e.g. now, i.e. The tool. Yes.", "It costs $3.50. OK.", "Born in 1990. She left.",
        "He lives in the U.S. He likes it.", "Vitamin C. He took it.", "It was I. He left.",
        "Hello... World.", "He is here… She left.", "Well… it is. Yes.", "Who knows... it is. Yes.",
        "Really?! Yes.", "Wait! Go.", "Is it so?🎉 Yes.", "He (etc.) came. Yes.", "A. B.",
        "好嗎?好。", "好吗？好。", "走!好。", "我……不知道。好。", "OK?好", "好? Yes", "一。二。",
        "वह गया। हाँ।", "وہ گیا۔ ہاں۔", "هل جاء؟ نعم.",
        "1. First item\n2. Second item", "1. First item.\n2. Second item.", "- one\n- two",
        "A title\n\nIts text.", "# A title\nIts text.", "So it is:\n- one", "one\n***\ntwo",
        "z.B. Äpfel sind gut. Ja.", "Das ist z. B. ein Apfel. Ja.", "Es ist d. h. so. Ja.",
        "Er kam am 3. Mai an. Dann ging er.", "Im 19. Jahrhundert war es so. Ja.",
        "El Sr. López llegó. Ud. lo vio.", "Кот и т. д. спят. Да.", "В 2020 г. он уехал. Да.",
        "Это было в 2020 г. Потом он уехал.", "We lost 5. Then we won.",
        "「好き。」と言った。はい。",
        "Solve for x. Then check.", "one is x. two is y.",
        "many people think. old books say so.", "A line\ngoes on. Yes.", "10) ten\n11) eleven",
    ],
)  # fmt: skip
def test_there_are_two_sentences(text: str) -> None:
    assert len(sentences_of(text)) == 2, ended_sentences_of(text)
    assert obeys(text, {"kind": "sentence_count", "exactly": 2})


@pytest.mark.parametrize(
    "text",
    [
        "The U.S. is big", "We met at 5 p.m.", "It is by J. Smith.", "I like cats, etc. and dogs.",
        "Well... it is so.", "我……不知道。", "A line\ngoes on.", "- one", "1. one", "Bees fly. 🎉",
        "version 1.4.2 is out", "He said \"go.\" then left.", "Mr. and Mrs. Lee vs. Dr. J. Ray",
        "Is it so?!", "See e.g. https://a.b/c?d=e", "2 + 3 = 5.",
    ],
)  # fmt: skip
def test_there_is_one_sentence(text: str) -> None:
    assert len(sentences_of(text)) == 1, ended_sentences_of(text)
    assert obeys(text, {"kind": "sentence_count", "exactly": 1})


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("Is it? So", [("Is it", "?"), ("So", "")]),
        ("**Good.** Go on…", [("**Good", "."), ("Go on", "…")]),
        ("See:\n1. Cats.\n2. Dogs", [("See:", ""), ("Cats", "."), ("Dogs", "")]),
        ("- . - . - .", []),
        ("? ! …", []),
    ],
)
def test_a_sentence_comes_with_its_end(text: str, ended: list[tuple[str, str]]) -> None:
    assert ended_sentences_of(text) == ended


@pytest.mark.parametrize(
    ("reply", "constraint", "holds"),
    [
        ("1. Cats sleep\n2. Dogs bark", {"kind": "words_in_each_sentence", "exactly": 2}, True),
        ("- The cat\n- The dog", {"kind": "each_sentence_starts", "word": "the"}, True),
        ("- The cat\n- A dog", {"kind": "each_sentence_starts", "word": "the"}, False),
        ("Is it so?\n\nYes", {"kind": "questions", "exactly": 1}, True),
        ("He is here… She left…", {"kind": "each_sentence_ends_with", "mark": "."}, False),
        ("Dr. No came. He left.", {"kind": "sentence_starts", "number": 2, "word": "he"}, True),
        ("嗎?好。", {"kind": "ends_alternate"}, True),
    ],
)
def test_kinds_that_look_at_sentences(reply: str, constraint: dict[str, Any], holds: bool) -> None:
    assert obeys(reply, constraint) is holds
