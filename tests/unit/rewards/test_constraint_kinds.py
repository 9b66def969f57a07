"""Each kind of the taxonomy on replies that obey and on replies that nearly do."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest

from infra.errors import InputError
from rewards.constraints.constraints import ALL_KINDS, TAXONOMY, obeys
from tests.unit.rewards.test_constraints import CASES as FIRST

pytestmark = pytest.mark.unit

TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"
CODE = "```python\nprint(1)\n```"
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
BOMB = (
    "a: &a [x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))
    + "? *j\n: x\n"
)
"""a key of nine to the power of nine values, in 500 characters"""
CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("all_words", {"words": ["cat", "dog"]}, ["Dog, cat!"], ["cat", "cats dogs"]),
    ("any_word", {"words": ["cat", "dog"]}, ["a Dog"], ["a cow"]),
    ("words_in_order", {"words": ["cat", "dog"]}, ["cat, then dog"], ["dog cat", "cat"]),
    ("word_pair", {"first": "red", "second": "cat"}, ["the Red cat"], ["red big cat", "cat red"]),
    ("phrase", {"text": "a cat"}, ["Is a cat."], ["A cat", "a  cat"]),
    ("phrase_count", {"text": "ha", "exactly": 2}, ["haha"], ["ha", "hahaha"]),
    ("keyword_in_each_sentence", {"word": "cat"}, ["A cat. My cat!"], ["A cat. A dog."]),
    ("keyword_in_each_paragraph", {"word": "cat"}, ["cat a.\n\nb cat"], ["cat a.\n\nb"]),
    ("keyword_in_sentence", {"word": "cat", "number": -1}, ["Dog. Cat."], ["Cat. Dog."]),
    ("keyword_in_sentence", {"word": "cat", "number": 2}, ["Dog. Cat. Cow."], ["Cat.", "Cat. Cow"]),
    ("keyword_in_paragraph", {"word": "cat", "number": 1}, ["cat\n\ndog"], ["dog\n\ncat"]),
    ("letter_count", {"letter": "a", "exactly": 2}, ["Aha"], ["ha", "banana"]),
    ("alliteration", {"letter": "b", "at_least": 2}, ["big Bad cat"], ["big cat"]),
    ("each_ends_with", {"text": "t"}, ["cat, HAT"], ["cat hats"]),
    ("each_contains_letter", {"letter": "a"}, ["cat Hand"], ["cat dog"]),
    ("longest_word", {"at_most": 3}, ["a big cat"], ["a large cat"]),
    ("shortest_word", {"at_least": 3}, ["the cats"], ["a cat"]),
    ("distinct_words", {"at_least": 2}, ["cat dog cat"], ["cat Cat"]),
    ("most_repeated_word", {"at_most": 1}, ["cat dog"], ["cat dog Cat"]),
    ("no_word_twice_in_a_row", {}, ["cat dog cat"], ["cat Cat dog"]),
    ("reverse_alphabetical", {}, ["dog cat ant"], ["dog ant cat"]),
    ("growing_words", {}, ["a big lion"], ["a big cat"]),
    ("word_chain", {}, ["cat tiger red"], ["cat lion"]),
    ("palindromes", {"at_least": 1}, ["Anna sings"], ["a cat"]),
    ("letters", {"exactly": 3}, ["cat 1!"], ["cats"]),
    ("average_word_length", {"at_most": 3}, ["a cats"], ["cats dogs"]),
    ("words_in_each_sentence", {"exactly": 2}, ["Big cat. Red dog."], ["Big cat. Dog."]),
    ("words_in_each_paragraph", {"at_least": 2}, ["a b\n\nc d e"], ["a b\n\nc"]),
    ("words_in_each_line", {"at_most": 2}, ["a b\nc"], ["a b\nc d e"]),
    ("sentences_in_each_paragraph", {"exactly": 1}, ["A b.\n\nC d."], ["A. B.\n\nC."]),
    ("characters_in_each_line", {"at_most": 3}, ["cat\ndog"], ["cats\ndog"]),
    ("growing_sentences", {}, ["Go. Go now."], ["Go now. Go.", "Go."]),
    ("shrinking_sentences", {}, ["Go now. Go."], ["Go. Go now."]),
    ("growing_lines", {}, ["go\ngo now"], ["go now\ngo"]),
    ("equal_sentences", {}, ["Go now. Do it!"], ["Go now. Go.", "Go now."]),
    ("bullet_count", {"exactly": 2}, ["See:\n- a\n* b"], ["- a", "-a\n-b", "- a\n- b\n- c"]),
    ("numbered_count", {"exactly": 2}, ["So:\n1. a\n2. b"], ["1. a\n3. b", "1. a"]),
    ("checkbox_count", {"at_least": 2}, ["- [ ] a\n- [x] b"], ["- a\n- b", "- [ ] a"]),
    ("nested_bullets", {}, ["- a\n  - b"], ["- a\n- b"]),
    ("numbered_steps", {"exactly": 2}, ["Step 1: a\nStep 2: b"], ["Step 1: a\nStep 3: b"]),
    ("highlights", {"at_least": 2}, ["*one* and **two**"], ["*one*", "2 * 3 * 4", "* a *"]),
    ("bold_parts", {"exactly": 1}, ["a **big** cat"], ["a *big* cat", "** big **"]),
    ("headings", {"exactly": 2}, ["# A\nx\n## B"], ["# A", "#A\n#B"]),
    ("headings", {"level": 2, "exactly": 1}, ["# A\n## B"], ["# A\n# B", "```\n## B\n```"]),
    ("sections", {"word": "Part", "exactly": 2}, ["Part 1 a Part 2 b"], ["Part one", "Part 1"]),
    ("title", {}, ["<<Cats>>\nA"], ["<Cats>", "<< >>"]),
    ("table", {"columns": 2, "rows": 2}, [TABLE], [TABLE + "\n| 5 | 6 |", "a | b", "| a |\n|---|"]),
    ("code_block", {"language": "python"}, ["See:\n" + CODE], ["```\nprint(1)\n```", "print(1)"]),
    ("only_code_block", {}, [CODE], ["See:\n" + CODE, "```\n\n```"]),
    ("inline_code", {"exactly": 1}, ["use `ls`"], ["use ls", CODE]),
    ("links", {"at_least": 1}, ["[a](http://b.c)"], ["![a](http://b.c)", "[a] (b)"]),
    ("formulas", {"exactly": 1}, ["so $x = 1$"], ["costs $5 or $6", "x = 1"]),
    ("quoted_lines", {"at_least": 1}, ["> so it is"], ["a > b", ">"]),
    ("parts_between_rules", {"exactly": 2}, ["a\n***\nb"], ["a", "a\n***\n"]),
    ("two_answers", {}, ["a\n******\nb"], ["a\n******\na", "a\n***\nb", "******"]),
    ("no_markdown", {}, ["plain - text"], ["# A", "- a", "**a**"]),
    ("one_line", {}, ["a b\n"], ["a\nb"]),
    ("one_paragraph", {}, ["a\nb"], ["a\n \nb"]),
    ("indentation", {"exactly": 2}, ["  a\n  b"], ["  a\nb", "a"]),
    ("key_value_lines", {"keys": ["a", "b"]}, ["a: 1\nb: 2"], ["b: 1\na: 2", "a: 1", "a 1\nb 2"]),
    ("dialogue", {"names": ["A", "B"]},
     ["A: hi\nB: ho\nA: ha"], ["A: hi", "A: a\nA: b", "A:\nB: a"]),
    ("wrapped_in_tag", {"tag": "b"}, ["<b>a</b>"], ["<b></b>", "<b>a</b>!", "<b>a</b><b>c</b>"]),
    ("fenced_json", {}, ['```json\n{"a": 1}\n```', "[1]"], ["```json\n{a}\n```", "See [1]"]),
    ("json_list", {"exactly": 2}, ["[1, 2]"], ["[1]", '{"a": 1}']),
    ("json_schema", {"schema": SCHEMA}, ['{"n": 1}'], ['{"n": "1"}', "{}", "[1]"]),
    ("csv_table", {"columns": 2, "rows": 1},
     ['a,b\n1,"2,3"'], ["a,b", "a,b\n1", "a\n1", 'a,b\n1,"2']),
    ("yaml_keys", {"keys": ["a", "b"]}, ["a: 1\nb: [2]"], ["a: 1", "- a\n- b", "a: b: c"]),
    ("sentence_case", {}, ["A cat. My dog."], ["A cat. my dog."]),
    ("alternating_case", {}, ["BIG cat RUNS"], ["BIG CAT", "Big cat", "BIG"]),
    ("naming_style", {"style": "snake"}, ["big_cat"], ["bigCat", "big cat", "big"]),
    ("naming_style", {"style": "camel"}, ["bigCat"], ["BigCat", "bigcat"]),
    ("capital_words", {"at_least": 2}, ["BIG cat RUNS"], ["BIG Cat"]),
    ("capital_letters", {"exactly": 1}, ["A cat"], ["A Cat"]),
    ("capitalized_words", {"at_least": 2}, ["My Cat"], ["My cat"]),
    ("mark_count", {"mark": ";", "exactly": 1}, ["a; b"], ["a, b", "a; b;"]),
    ("no_marks", {"marks": ",;"}, ["a b."], ["a, b"]),
    ("no_punctuation", {}, ["a cat 2"], ["a cat."]),
    ("each_sentence_ends_with", {"mark": "!"}, ["Go! Run!"], ["Go! Run.", "Go! Run", "Go!!"]),
    ("ends_alternate", {}, ["Go! Run. Go!"], ["Go! Run!", "Go."]),
    ("questions", {"exactly": 1}, ["Is it? Yes."], ["Yes.", "Is it? Is it?"]),
    ("exclamations", {"exactly": 1}, ["Go! Now."], ["Go.", "Go! Now!"]),
    ("in_quotation_marks", {}, ['"a cat"'], ['a "cat"', '""']),
    ("quotations", {"exactly": 2}, ['"a" and “b”'], ['"a"']),
    ("placeholders", {"at_least": 2}, ["[name], [town]"], ["[name]", "[]"]),
    ("parentheses", {"at_least": 1}, ["a (b)"], ["a b", "()"]),
    ("ellipses", {"exactly": 1}, ["well... ok"], ["well.... ok", "well.."]),
    ("emojis", {"exactly": 1}, ["hi 🎉"], ["hi :)", "🎉🎉"]),
    ("no_emoji", {}, ["hi 3"], ["hi 🎉"]),
    ("emoji_ends_each_sentence", {}, ["Hi. 🎉 Go! 🐱"], ["Hi. 🎉 Go!", "Hi 🎉"]),
    ("no_digits", {}, ["one cat"], ["1 cat"]),
    ("digits", {"exactly": 3}, ["1 cat, 23 dogs"], ["12"]),
    ("ascii_only", {}, ["cafe"], ["café"]),
    ("no_contractions", {}, ["do not"], ["don't", "it’s"]),
    ("contractions", {"at_least": 1}, ["I don't"], ["I do not"]),
    ("hyphenated_words", {"exactly": 1}, ["well-known cat"], ["well - known", "a-b c-d"]),
    ("lines_end_without_mark", {}, ["a\nb"], ["a.\nb"]),
    ("ends_with_phrase", {"text": "so it is."}, ["And SO it is. "], ["so it is. Yes"]),
    ("first_word", {"word": "cat"}, ["Cat, come"], ["A cat"]),
    ("last_word", {"word": "cat"}, ["My Cat."], ["Cat, come"]),
    ("first_and_last_word_equal", {}, ["Cats love cats."], ["cat", "Cats love dogs."]),
    ("paragraph_starts", {"number": 2, "word": "so"}, ["a\n\nSo b"], ["So\n\na", "So"]),
    ("sentence_starts", {"number": 2, "word": "so"}, ["A. So b."], ["So. A.", "So."]),
    ("each_sentence_starts", {"word": "the"}, ["The a. The b."], ["The a. A b."]),
    ("each_paragraph_starts", {"word": "the"}, ["The a\n\nThe b"], ["The a\n\nb"]),
    ("sentences_start_differently", {}, ["A b. The c."], ["A b. A c.", "A b."]),
    ("lines_start_with", {"text": ">"}, ["> a\n> b"], ["> a\nb"]),
    ("lines_end_with", {"text": ";"}, ["a;\nb;"], ["a;\nb"]),
    ("sentence_chain", {}, ["I see a cat. Cat eats."], ["I see. A cat.", "A cat."]),
    ("postscript", {},
     ["Dear.\n\nP.S. Come soon."], ["P.S. Come", "Dear.\n\nP.S.", "P.S. a\n\nDear."]),
    ("repeats_request", {"request": "Say hi."}, ["Say hi. Hi!"], ["Hi! Say hi.", "Say hi."]),
    ("greeting", {"name": "Ann"}, ["Dear Ann,\nhi"], ["Ann,\nhi", "Dear Anna,"]),
    ("signature", {"name": "Bob"}, ["hi\n- Bob", "hi\nBob"], ["Bob", "hi Bob"]),
    ("acrostic_of_lines", {"word": "ab"}, ["ant\nbee"], ["bee\nant", "ant\nbee\ncow"]),
    ("acrostic_of_sentences", {"word": "ab"}, ["A cat. Be it."], ["Be. A.", "A. B. C."]),
    ("acrostic_of_words", {"word": "ab"}, ["ant bee"], ["ant cow", "ant bee cow"]),
    ("ends_with_question", {}, ["So? Is it?"], ["Is it? So.", "(Is it?)."]),
    ("ends_without_mark", {}, ["a cat"], ["a cat."]),
    ("starts_and_ends_with_line", {"text": "Hi"}, ["Hi\na\nHi"], ["Hi\na", "Hi\nHi"]),
    ("one_of", {"options": ["yes", "no"]}, ["yes\n"], ["Yes", "yes."]),
    ("holds_one_of", {"options": ["red", "blue"]}, ["is red"], ["is green"]),
    ("chosen_letter", {"letters": "ABC"}, ["So.\nAnswer: B"], ["Answer: D", "Answer: B\nSo."]),
    ("yes_or_no", {}, ["Yes, it is"], ["It is, yes", "Yes and no"]),
    ("numbers", {"exactly": 2}, ["1 and 2.5", "1,000, -3"], ["x1 2", "1.2.3 4"]),
    ("only_number", {}, ["-1,234.5"], ["42!", "4 2"]),
    ("number_between", {"low": 1, "high": 3}, ["2 or 3"], ["2 or 4", "two"]),
    ("growing_numbers", {}, ["1, 2 and 30"], ["2, 1", "1"]),
    ("sum_of_numbers", {"total": 5}, ["2 and 3"], ["2 and 4", "5"]),
    ("even_numbers", {}, ["2 and 40", "2" * 60], ["2 and 3", "2.5"]),
    ("right_equations", {"at_least": 1}, ["2 + 3 = 5"], ["2 + 3 = 6", "2 + 3 = 5, 1+1=3", "5"]),
    ("iso_dates", {"exactly": 1}, ["on 2024-02-29"], ["on 2023-02-29", "1.2.2024"]),
    ("clock_times", {"exactly": 1}, ["at 14:05"], ["at 25:05", "at 2:05"]),
    ("years", {"at_least": 1}, ["in 1999"], ["in 3999", "19990"]),
    ("urls", {"exactly": 1}, ["(https://a.bc/d)"], ["a.bc", "http://localhost"]),
    ("emails", {"exactly": 1}, ["a.b@c.de"], ["a@b", "@c.de"]),
    ("hashtags", {"at_least": 1}, ["so #big1"], ["# big", "a#b"]),
    ("mentions", {"at_least": 1}, ["hi @ann"], ["a@b.c", "@ ann"]),
    ("percentages", {"exactly": 1}, ["12.5 % more"], ["12 more", "v1.2%"]),
    ("amounts", {"currency": "€", "exactly": 2}, ["€3 or 1,50 €"], ["3 or 4", "€ 3"]),
    ("measures", {"unit": "km", "exactly": 1}, ["3.5 km far"], ["3 kmh", "km"]),
    ("hex_colours", {"exactly": 1}, ["is #1E90ff"], ["is #1E90f", "is #1E90ffa"]),
    ("version_numbers", {"exactly": 1}, ["now v1.2.3"], ["now 1.2", "1.2.3.4"]),
    ("roman_numerals", {"at_least": 1}, ["Henry VIII"], ["I am", "VIIII"]),
    ("no_first_person", {}, ["You see it"], ["I see", "I'm here", "we go"]),
    ("first_person", {}, ["I go. My cat."], ["I go. A cat."]),
    ("second_person", {}, ["You go. Your cat."], ["You go. A cat."]),
    ("quotes", {"text": "so be it"}, ['He said "so be it".'], ["He said so be it."]),
    # What a policy would find, and right answers that look unusual.
    ("json_list", {"at_most": 5}, ["[1]"], ["hello"]),
    ("right_equations", {"at_most": 5}, ["- 2 + 3 * 2 = 8"], ["2 + 3 = 6", "7 − 2 = 9, 1+1=2"]),
    ("right_equations", {"at_least": 1}, ["2 x 2 = 4"], ["2 + 3 = 5. 2 x 2 = 5", "2+3 = 5 = 1+4"]),
    ("indentation", {"at_most": 4}, ["  a"], ["  a\nb"]),
    ("numbered_count", {"at_most": 4}, ["1. a"], ["1. a\n3. b", "1" * 5000 + ". a\n2. b"]),
    ("numbered_count", {"exactly": 1}, ["**1.** a\n1. b"], ["1. .", "1. "]),
    ("no_markdown", {}, ["5*3*2 is 30"], ["1. a\n2. b", "*very*", "> q", TABLE, "__b__", "~~~"]),
    ("no_contractions", {}, ["My neighbour's garden"], ["It's big", "we’ll go"]),
    ("emojis", {"exactly": 1}, ["👍🏽", "🇩🇪", "👨‍👩‍👧", "1️⃣"], ["Windows™"]),
    ("emoji_ends_each_sentence", {}, ["Use v1.2 now. 🎉"], ["Hi. 🎉 and more"]),
    ("scripts_by_sentence", {"scripts": ["Han", "Han"]},
     ["大家早上好。非常感谢。"], ["大家早上好"]),
    ("ends_without_mark", {}, ["नमस्ते", "a 🎉"], ["नमस्ते।"]),
    ("no_first_person", {}, ["Go on"], ["ourselves"]),
    ("amounts", {"currency": "EUR", "exactly": 1}, ["5 EUR", "5\u00a0EUR"], ["5 EUROPE"]),
    ("code_block", {"language": "c#"}, ["  ``` c#\n  x\n  ```"], ["```c\nx\n```"]),
    ("keyword", {"word": "cat", "at_most": 0}, ["dog"], ["cat"]),
    ("alphabetical", {}, ["a b"], ["a"]),
    ("bullet_list", {"count": 2}, ["- a\n- b"], ["- .\n- ."]),
    ("dialogue", {"names": ["A", "B"]}, ["**A:** x\n**B:** y"], ["A: .\nB: ."]),
    ("questions", {"exactly": 3}, ["A? B? C?"], ["? ? ?"]),
    ("questions", {"exactly": 1}, ["Is it **so?** Yes."], ["Is it so."]),
    ("sentence_count", {"exactly": 1}, ["Bees fly. 🎉", "Use it, e.g. now."], ["- . - . - ."]),
    ("sentence_count", {"exactly": 2}, ["Dr. Smith came. He left.", 'She said "go." Then left.'],
     ["Well... it is so."]),
    ("table", {"rows": 1}, ["| a | b |\n|---|---|\n| 1 | |"], ["| a | b |\n|---|---|\n| | |"]),
    ("number_between", {"low": 1, "high": 10}, ["5 and 7"], ["5 and 500km", "I count −5 and 3"]),
    ("sum_of_numbers", {"total": 92}, ["40, 52"], ["92 and 0." + "0" * 30 + "1"]),
    ("growing_numbers", {}, ["3,7,12"], ["−3, −7"]),
    ("in_quotation_marks", {}, ["“Bees fly.”"], ['"a" and "b"']),
    ("sections", {"word": "Part", "exactly": 2}, ["Part 1 a\nPart 2 as in Part 1"],
     ["Part 1 Part 1", "Part 7 Part 9"]),
    ("parts_between_rules", {"mark": "***", "exactly": 2}, ["a\n***\nb"], ["a\n---\nb"]),
    ("two_answers", {}, ["a\n******\nb"], ["a\n******\nA."]),
    ("length", {"at_least": 50}, ["a" * 50 + "\n"], ["a" + " " * 60, "a" + "\u200b" * 60]),
    ("ends_alternate", {}, ["Go. Run! Stop."], ["Go. Run.. Stop."]),
    ("each_sentence_ends_with", {"mark": "."}, ["**Good.**", "Bees fly. 🎉"], ["Good!"]),
    ("word_pair", {"first": "don't", "second": "mind"}, ["I don’t mind"], ["mind, don't"]),
    ("version_numbers", {"exactly": 1}, ["We use V1.4.2."], ["1.2.3.4"]),
    ("ends_with", {"text": "end."}, ["The end.\n"], ["The end. "]),
    ("greeting", {"name": "Ann"}, ["Hello, Ann!", "My dear Ann:"], ["Ann,", "Dear Bob,"]),
    ("signature", {"name": "Bob"}, ["x\n— **Bob**"], ["x\nBobby"]),
    ("postscript", {}, ["x\n\n**P.S.** y"], ["x\n\ny"]),
    ("nested_bullets", {}, ["1. a\n   - b", "+ a\n  + b"], ["1. a\n2. b"]),
    ("formulas", {"exactly": 1}, ["$$x=1$$"], ["The $5-$6 range"]),
    ("urls", {"exactly": 1}, ["**HTTPS://bees.org**"], ["https://... x"]),
    ("ends_with_question", {}, ["(Is it so?)", "Is it **so?**"], ["(Is it?)."]),
    ("hyphenated_words", {"exactly": 1}, ["well‑known", "20-year-old"], ["well known"]),
    ("plain_latin", {}, ["cafe"], ["cafe\u0301"]),
    ("one_paragraph", {}, ["a\r\nb"], ["a\r\n\r\nb", "a\n\u00a0\nb"]),
    ("yaml_keys", {"keys": ["a"]}, ["a: !!bool x"], ["a: 1\na: 2", "[" * 60 + "a: 1"]),
    ("yaml_keys", {"keys": ["a"]}, ["a: [1]"], ["- " * 5000 + "a", BOMB]),
    ("json_schema", {"schema": {"type": "object"}}, ['{"a": 1}'], ["[" * 50_000]),
    ("script", {"script": "Cyrillic"}, ["Привет, мир, это говорит Al"], ["Hello мир", "Hello"]),
    ("script", {"script": "Japanese"}, ["日本語です"], ["中文", "abc"]),
    ("only_script", {"script": "Greek"}, ["καλά 12"], ["καλά a"]),
    ("no_script", {"script": "Latin"}, ["привет"], ["привет a", "12"]),
    ("letters_of_script", {"script": "Han", "at_least": 2}, ["see 中文"], ["see 中"]),
    ("scripts_by_paragraph", {"scripts": ["Latin", "Greek"]}, ["a\n\nβ"], ["β\n\na", "a"]),
    ("scripts_by_sentence", {"scripts": ["Latin", "Greek"]}, ["Hi. Καλά."], ["Hi.", "Hi. Ho."]),
    ("accented_letters", {"at_least": 1}, ["café"], ["cafe", "привет"]),
    ("plain_latin", {}, ["cafe 1"], ["café", "привет"]),
]  # fmt: skip
OBEYED = [(k, p, reply) for k, p, right, _ in CASES for reply in right]
BROKEN = [(k, p, reply) for k, p, _, wrong in CASES for reply in wrong]


@pytest.mark.parametrize(("kind", "parameters", "reply"), OBEYED)
def test_a_reply_that_obeys(kind: str, parameters: dict[str, Any], reply: str) -> None:
    assert obeys(reply, {"kind": kind, **parameters})


@pytest.mark.parametrize(("kind", "parameters", "reply"), BROKEN)
def test_a_reply_that_does_not(kind: str, parameters: dict[str, Any], reply: str) -> None:
    assert not obeys(reply, {"kind": kind, **parameters})


def test_there_are_seven_groups_of_a_hundred_and_twenty_kinds_or_more_and_each_is_tried() -> None:
    assert len(TAXONOMY) == 7
    assert sum(len(kinds) for kinds in TAXONOMY.values()) == len(ALL_KINDS) >= 120
    assert {case[0] for case in (*FIRST, *CASES)} == set(ALL_KINDS)
    assert all(check.__doc__ for check in ALL_KINDS.values())


@pytest.mark.parametrize("kind", sorted(ALL_KINDS))
def test_an_empty_reply_obeys_nothing(kind: str) -> None:
    parameters = next(case[1] for case in (*FIRST, *CASES) if case[0] == kind)
    assert not obeys(" \n", {"kind": kind, **parameters})


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ({"kind": "word_cuont", "exactly": 1}, "Did you mean 'word_count'?"),
        ({}, "no constraint is called ''"),
        ({"kind": "word_count", "exact": 1}, "exact: Extra inputs are not permitted; its"),
        ({"kind": "mark_count", "mark": ",", "exactlyy": 1}, "exactlyy: "),
        ({"kind": "words_in_each_line", "most": 1}, "most: "),
        ({"kind": "mark_count", "exactly": 1}, "mark: Field required"),
        ({"kind": "word_count"}, "say how many: `exactly`, `at_least` or `at_most`"),
        ({"kind": "script", "script": "Klingon"}, "Klingon"),
        ({"kind": "script", "script": "Lu"}, "Lu"),
        ({"kind": "word_count", "exactly": "3"}, "exactly: Input should be a valid"),
        ({"kind": "one_of", "options": "yes"}, "options: "),
        ({"kind": "forbidden", "words": "cat"}, "words: "),
        ({"kind": "phrase", "text": ""}, "text: Value error, must not be empty"),
        ({"kind": "dialogue", "names": []}, "names: Value error, must not be empty"),
        ({"kind": "keyword_in_sentence", "word": "a", "number": 0}, "number: 0 is none"),
        ({"kind": "sentence_starts", "word": "a", "number": 0}, "number: 0 is none"),
        ({"kind": "allowed_words", "words": ["well-known"]}, "'well-known' is not one word"),
        ({"kind": "first_word", "word": "--"}, "'--' is no word"),
        ({"kind": "json_schema", "schema": {"requird": ["a"]}}, "`requird` is not read"),
        ({"kind": "json_schema", "schema": {"format": "date"}}, "`format` is not read"),
        ({"kind": "json_schema", "schema": {"uniqueItems": True}}, "`uniqueItems` is not read"),
        ({"kind": "case", "case": "small"}, "case: Input should be 'lower', 'upper' or 'title'"),
        ({"kind": "naming_style", "style": "dotted"}, "style: Input should be 'snake', 'kebab'"),
        ({"kind": "json_schema", "schema": {"type": "objekt"}}, "json_schema: "),
        ({"kind": "json_schema", "schema": {"$ref": "http://127.0.0.1:1/s"}}, "json_schema: "),
        ({"kind": "json_schema", "schema": {"items": {"pattern": "(a+)+$"}}}, "`pattern`"),
    ],
)  # fmt: skip
def test_what_is_no_constraint_is_named(constraint: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        obeys('{"a": [1]}', constraint)
    assert said in str(refused.value)


_HOSTILE = (
    "`" * 3 + "x\n", "[", "](", "<<a ", "“", "http://", "1", "1,", "1.1", "- ", "*a", "**a", "|-",
    "| ", "(", "#a ", "A.", "a@", "a-", "$a", "\n ", "a: ", ">", "M", "e1: &a ", "[[", "é", "\t",
    "((a", "\n", '"', "a,", "{", "IX", "🎉", "'", "P.S.",
)  # fmt: skip


@pytest.mark.parametrize("unit", _HOSTILE)
def test_a_long_reply_takes_no_longer_than_reading_it(unit: str) -> None:
    """15,000 characters of what a search could go back over again and again."""
    reply = "a " + unit * (15_000 // len(unit)) + "!"
    slowest, where = 0.0, ""
    for kind, parameters, *_ in (*FIRST, *CASES):
        began = time.process_time()
        obeys(reply, {"kind": kind, **parameters})
        spent = time.process_time() - began
        slowest, where = max((slowest, where), (spent, kind))
    assert slowest < 1, f"{where} took {slowest:.1f} s"
