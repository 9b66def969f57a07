"""Rows of two answers and a column that says which of them is better, as public files have them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import read_judged
from infra.data_files.rows import BadRow, Reason
from tests.parts.row_parts import ASK

pytestmark = pytest.mark.unit

X, Y = {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}
TALKS = {"conversation_a": [ASK, X], "conversation_b": [ASK, Y]}
AB = {"prompt": "12+30", "response_a": "x", "response_b": "y"}
ONE_TWO = {"prompt": "12+30", "response_1": "x", "response_2": "y"}
ZERO_ONE = {"prompt": "12+30", "response_0": "x", "response_1": "y"}
HELPSTEER3 = {
    "domain": "general", "language": "english", "context": [ASK], "response1": "x",
    "response2": "y", "individual_preference": [{"score": -2, "feedback1": "f"}],
}  # fmt: skip
PKU = ZERO_ONE | {
    "prompt_source": "s", "response_0_source": "a", "is_response_0_safe": True,
    "response_0_harm_category": {"Privacy": False}, "response_0_severity_level": 0,
    "better_response_id": 1, "safer_response_id": 0, "response_0_sha256": "a",
}  # fmt: skip
ARENA = TALKS | {
    "question_id": "q", "model_a": "m", "model_b": "n", "judge": "arena_user", "turn": 1,
    "anony": True, "language": "English", "tstamp": 1.0, "toxic_chat_tag": {"flagged": False},
}  # fmt: skip
SHP = {"history": "12+30", "human_ref_A": "x", "human_ref_B": "y", "score_A": 3, "score_B": 5}
SHP_NAMES = {
    "prompt": "history", "first": "human_ref_A", "second": "human_ref_B", "better": "labels",
}  # fmt: skip
SUMMARIES = {"info": {"post": "12+30"}, "summaries": [{"text": "x"}, {"text": "y"}]}
SUMMARY_NAMES = {
    "prompt": "info.post", "first": "summaries.0.text", "second": "summaries.1.text",
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "columns", "better", "margin"),
    [
        (HELPSTEER3 | {"overall_preference": -2}, {}, "x", 2),
        (HELPSTEER3 | {"overall_preference": 1}, {}, "y", 1),
        (ONE_TWO | {"preference_strength": "3", "split": "a"}, {}, "y", 3),
        (ONE_TWO | {"lead": -0.5}, {"strength": "lead"}, "x", 0.5),
        (PKU, {}, "y", 0),
        (PKU, {"better": "safer_response_id"}, "x", 0),
        (ARENA | {"winner": "model_b"}, {}, "y", 0),
        (ARENA | {"winner": "model_a"}, {}, "x", 0),
        ({"instruction": "12+30", "output_1": "x", "output_2": "y", "preference": 2}, {}, "y", 0),
        (ONE_TWO | {"preference": 1.0}, {}, "x", 0),
        (AB | {"label": "B"}, {}, "y", 0),
        (AB | {"winner": "[[A]]", "label": "sums"}, {}, "x", 0),
        (AB | {"chosen": "response_b"}, {}, "y", 0),
        (AB | {"preferred": "second"}, {}, "y", 0),
        (SHP | {"labels": 1}, {**SHP_NAMES, "first_is": "1", "second_is": "0"}, "x", 0),
        (SUMMARIES | {"choice": 1}, SUMMARY_NAMES, "y", 0),
        (
            {"prompt": "12+30", "left": "x", "right": "y", "winner": "left"},
            {"first": "left", "second": "right"}, "x", 0,
        ),
        (
            AB | {"is_a_better": False},
            {"better": "is_a_better", "first_is": "true", "second_is": "false"}, "y", 0,
        ),
    ],
)  # fmt: skip
def test_a_column_says_which_of_two_answers_is_better(
    row: dict[str, Any], columns: dict[str, str], better: str, margin: float
):
    found = read_judged(row, PairColumns(**columns), "auto")
    ((best, worst, by),) = found.pairs
    assert [each.messages[0].content for each in found.answers] == ["12+30"] * 2
    assert (found.answers[best].messages[-1].content, by) == (better, margin)
    assert (found.worth[best], found.worth[worst], found.has_scores) == (1, 0, False)
    assert found.has_margin == (margin > 0)


@pytest.mark.parametrize(
    "row",
    [
        HELPSTEER3 | {"overall_preference": 0},
        *[ARENA | {"winner": each} for each in ("tie", "tie (bothbad)", "both_bad", "Tie")],
        AB | {"preference": "neither"},
    ],
)
def test_a_tie_is_left_out_with_its_reason(row: dict[str, Any]):
    with pytest.raises(BadRow, match="no answer is better") as caught:
        read_judged(row, PairColumns(), "auto")
    assert caught.value.reason == Reason.UNDECIDED


@pytest.mark.parametrize(
    ("row", "columns", "said"),
    [
        (AB | {"label": 0}, {}, "label: 0 does not say which of `response_a` and `response_b`"),
        (AB | {"label": 1}, {}, "label: 1 does not say which"),
        (ONE_TWO | {"label": 0}, {}, "columns.first_is and columns.second_is"),
        (ZERO_ONE | {"label": 2}, {}, "label: 2 does not say which"),
        (ONE_TWO | {"winner": -1}, {}, "winner: -1 does not say which"),
        (ONE_TWO | {"preference": 1.5}, {}, "preference: 1.5 does not say which"),
        (AB | {"winner": "A>B"}, {}, "'A>B' does not say which"),
        (AB | {"winner": True}, {}, "True does not say which"),
        (SHP | {"labels": 0}, SHP_NAMES, "labels: 0 does not say which"),
        (AB | {"winner": None}, {}, "nothing says which answer is better; name it: columns.better"),
        (AB | {"winner": None}, {"better": "winner"}, "winner: None does not say which"),
        (AB | {"winner": "a", "preference": "b"}, {}, "has `winner` and `preference`, of which"),
        (ONE_TWO | {"response_3": "z", "preference": 1}, {}, "and `response_3`, and two are"),
        (ONE_TWO | {"overall_preference": "b"}, {}, "overall_preference: 'b' is no number"),
        (AB | {"response_b": "x", "winner": "a"}, {}, "are equal"),
        ({"prompt": "12+30", "response": "x", "winner": "a"}, {}, "columns.first, second and b"),
        ({"prompt": "12+30", "winner": "a"}, {"better": "winner"}, "has no two answers such as"),
    ],
)
def test_what_does_not_say_which_answer_is_better_is_refused(
    row: dict[str, Any], columns: dict[str, str], said: str
):
    with pytest.raises(BadRow, match=said) as caught:
        read_judged(row, PairColumns(**columns), "auto")
    assert caught.value.reason != Reason.UNDECIDED


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"first": "a"}, "names one of `first` and `second`"),
        ({"second_is": "0"}, "names one of `first_is` and `second_is`"),
        ({"better": "a", "strength": "b"}, "names `better` and `strength`"),
        ({"strength": "b", "first_is": "1", "second_is": "0"}, "names `strength` and `first_is`"),
        ({"better": "a", "chosen": "b"}, "names `chosen` .a pair. and `better` .a choice."),
    ],
)
def test_names_that_do_not_fit_are_refused(columns: dict[str, str], said: str):
    with pytest.raises(ValidationError, match=said):
        PairColumns(**columns)
