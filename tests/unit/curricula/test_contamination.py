"""What counts as a word, where rows are compared with what is held out."""

from __future__ import annotations

import time
import unicodedata
from typing import Literal

import pytest

from curricula.prompt_files.contamination import HeldOutWords, runs
from infra.shown_text import normal_form

pytestmark = pytest.mark.unit


def test_signs_are_words_where_a_script_has_no_spaces():
    # By hand: four signs, a word, two more signs.
    assert list(runs("农夫有羊 seven あい", 4)) == [
        ("农", "夫", "有", "羊"), ("夫", "有", "羊", "seven"), ("有", "羊", "seven", "あ"),
        ("羊", "seven", "あ", "い"),
    ]  # fmt: skip
    words = HeldOutWords(5)
    words.add("x", "农夫有七只白羊，又买了三只")
    assert words.shared_with("问：一个农夫有七只白羊吗？") == ("农 夫 有 七 只", "x")
    assert words.shared_with("농부는 양이 있다") is None


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0f73", "\u0344\u0316"])
def test_runs_of_marks_take_no_time_and_change_nothing_around_them(marks: str):
    began = time.process_time()
    assert normal_form("NFKC", f"caf e\u0301{marks * 100_000}. \ufb01ne") == (
        f"caf e\u0301{marks * 100_000}. fine"
    )
    assert time.process_time() - began < 2  # minutes, if they were sorted
    words = HeldOutWords(3)
    words.add("x", "un cafe\u0301 noir et chaud")
    assert words.shared_with(f"a{marks * 50_000} un caf\u00e9 noir") == ("un caf\u00e9 noir", "x")


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_what_people_write_has_unicodes_normal_form(form: Literal["NFC", "NFKC"]):
    most = "a" + "\u0301\u0316" * 15
    for text in ("plain", "cafe\u0301", "\ufb01 \u00bd \u00b2", "\u1112\u1161\u11ab", most):
        assert normal_form(form, text) == unicodedata.normalize(form, text)
