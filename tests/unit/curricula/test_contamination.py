"""What counts as a word, where rows are compared with what is held out."""

from __future__ import annotations

import pytest

from curricula.prompt_files.contamination import HeldOutWords, runs

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
