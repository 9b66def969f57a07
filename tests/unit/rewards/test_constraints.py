"""Each constraint verifier, on a reply that obeys and on one that does not."""

from __future__ import annotations

import pytest

from engines.types import Message, Problem, Status, Transcript
from infra.errors import InputError
from rewards.constraints.constraints import Constraints, obeys

pytestmark = pytest.mark.unit

NUMBERED = {"items": ["cat", "dog"]}
CASES = [
    ("word_count", {"exactly": 2}, "Big cat.", "cat"),
    ("word_count", {"at_least": 2, "at_most": 3}, "a b c", "a b c d"),
    ("sentence_count", {"exactly": 2}, "One. Two!", "One. Two! Three"),
    ("length", {"at_most": 3}, "cat", "cats"),
    ("case", {"case": "lower"}, "big cat!", "Big cat!"),
    ("case", {"case": "upper"}, "BIG CAT", "BIG Cat"),
    ("case", {"case": "title"}, "Big Cat", "BIG Cat"),
    ("case", {"case": "title"}, "Don't Stop", "Don'T Stop"),
    ("case", {"case": "title"}, "A Cat", "A cat"),
    ("starts_with", {"text": "ca"}, "cat", "act"),
    ("ends_with", {"text": "!"}, "cat!", "cat! "),
    ("each_starts_with", {"text": "c"}, "cat, Cup", "cat, hat"),
    ("keyword", {"word": "cat"}, "The Cat!", "The cats!"),
    ("keyword", {"word": "cat", "at_least": 2, "at_most": 2}, "cat cat", "cat cat cat"),
    ("forbidden", {"words": ["dog"]}, "a cat", "a Dog"),
    ("allowed_words", {"words": ["cat", "dog"]}, "cat Dog", "cat cow"),
    ("no_letter", {"letter": "a"}, "dog", "cAt"),
    ("distinct", {}, "cat dog", "cat Cat"),
    ("alphabetical", {}, "ant Bee cat", "bee ant"),
    (
        "repetition",
        {"unit": "ant", "times": 3, "separator": "-", "end": "!"},
        "ant-ant-ant!",
        "ant-ant!",
    ),
    ("joined", {"separator": " ", "end": "."}, "cat dog.", "cat  dog."),
    ("numbered_list", NUMBERED, "1. cat\n2. dog", "1. dog\n2. cat"),
    (
        "numbered_list",
        {**NUMBERED, "mark": ":", "separator": " ", "end": "!"},
        "1:cat 2:dog!",
        "1:cat 2:dog",
    ),
    ("bullet_list", {"count": 2}, "- cat\n- dog", "- cat\ndog"),
    ("bullet_list", {}, "- cat", "- "),
    ("item_count", {"exactly": 2}, "cat\n\ndog", "cat"),
    ("paragraph_count", {"exactly": 2}, "cat\n\ndog", "cat\ndog"),
    ("json", {}, '{"a": [1]}', '{"a": 1'),
    ("json", {}, "3", '{"a": 1, "a": 2}'),
    ("json_keys", {"keys": ["a", "b"]}, '{"b": 1, "a": 2}', '{"a": 1}'),
    ("json_keys", {"keys": ["a"]}, '{"a": 1}', "[1]"),
    ("json", {}, "-1e9", "NaN"),
    ("json", {}, '["NaN"]', "-Infinity"),
    ("json", {}, '{"a": 1}', '{"a": NaN}'),
    ("json_keys", {"keys": ["a"]}, '{"a": "NaN"}', '{"a": NaN}'),
]


@pytest.mark.parametrize(("kind", "parameters", "good", "bad"), CASES)
def test_a_verifier_tells_a_reply_that_obeys_from_one_that_does_not(kind, parameters, good, bad):
    assert obeys(good, {"kind": kind, **parameters})
    assert not obeys(bad, {"kind": kind, **parameters})


@pytest.mark.parametrize("word", ["ice cream", "well-known", "--", ""])
def test_a_word_that_no_reply_can_have_as_one_is_an_error(word):
    with pytest.raises(InputError, match=f"'{word}' is not one word"):
        obeys(f"a {word}", {"kind": "allowed_words", "words": ["dog", word]})


@pytest.mark.parametrize("word", ["ice cream", "C3PO", "well-known", "2024"])
def test_several_words_in_a_row_and_numbers_are_looked_for_like_one_word(word):
    for text, is_there in (
        (f"The {word.upper()}'s good", True), (f"un{word}", False), (f"{word}s", False),
    ):  # fmt: skip
        assert obeys(text, {"kind": "keyword", "word": word}) is is_there
        assert obeys(text, {"kind": "all_words", "words": [word]}) is is_there
        assert obeys(text, {"kind": "forbidden", "words": ["dog", word]}) is not is_there


@pytest.mark.parametrize("word", ["--", ""])
def test_what_is_no_word_is_not_looked_for(word):
    for rule in ({"kind": "keyword", "word": word}, {"kind": "forbidden", "words": ["dog", word]}):
        with pytest.raises(InputError, match=f"'{word}' is no word|must not be empty"):
            obeys(f"a {word}", rule)


def test_an_apostrophe_is_within_a_word():
    assert obeys("I don't", {"kind": "keyword", "word": "Don't"})


async def test_the_reward_is_one_only_if_every_constraint_holds_and_names_the_broken_ones():
    rules = [{"kind": "word_count", "exactly": 2}, {"kind": "ends_with", "text": "!"}]
    problem = Problem("p", "general", (), {"constraints": rules})

    async def judge(reply: str):
        message = Message("assistant", reply)
        return await Constraints()(Transcript(problem, (message,), Status.COMPLETED, 3))

    assert (await judge("big cat!")).score == 1.0
    half = await judge("big cat")
    assert half.score == 0.0
    assert half.parts == {"word_count": 1.0, "ends_with": 0.0}
    assert half.reason == "breaks ends_with"
