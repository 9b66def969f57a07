"""Preference pairs in three layouts: what both begin with, and what is compared."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import Judged, read_judged
from engines.types import Message
from infra.data_files.rows import BadRow, RowTally

pytestmark = pytest.mark.unit

ASK, BACK = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
GOOD, BAD = {"role": "assistant", "content": "Hello!"}, {"role": "assistant", "content": "No."}

BLANK = {"role": "assistant", "content": " "}
HH = "\n\nHuman: Hi\n\nAssistant:"


def read(row: dict[str, Any], **columns: str) -> Judged:
    return read_judged(row, PairColumns(**columns), "auto")


def texts(found: Judged) -> list[str]:
    return [answer.messages[-1].content for answer in found.answers]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "No."},
        {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "Hi", "chosen": [ASK, GOOD], "rejected": [ASK, BAD], "score": 1},
        {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        {"conversations": [ASK], "chosen": GOOD, "rejected": BAD},
        {
            "input": {"messages": [ASK]},
            "preferred_output": [GOOD],
            "non_preferred_output": [BAD],
        },
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: Hello!",
            "rejected": "\n\nHuman: Hi\n\nAssistant: No.",
        },
        {"prompt": "\n\nHuman: Hi\n\nAssistant:", "chosen": " Hello!", "rejected": "No. "},
        {"input": "Hi", "chosen": "Hello!", "rejected": "No."},
    ],
    ids=[
        *("texts", "messages", "repeated", "whole", "llama-factory", "openai", "anthropic"),
        *("anthropic's prompt", "input"),
    ],
)
def test_every_layout_says_the_same(row: dict[str, Any]):
    found = read(row)
    assert [answer.messages for answer in found.answers] == [
        (Message("user", "Hi"), Message("assistant", "Hello!")),
        (Message("user", "Hi"), Message("assistant", "No.")),
    ]
    assert [answer.untrained for answer in found.answers] == [frozenset()] * 2
    assert (found.pairs, found.is_good, found.names) == (
        ((0, 1, 0.0),), None, ["chosen", "rejected"]
    )  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "a", "rejected": "b", "score_chosen": 7, "score_rejected": 7},
        {"prompt": "Hi", "responses": ["a", "b"], "ranks": [1, 1]},
    ],
)
def test_a_row_that_prefers_no_answer_is_left_out_and_not_bad(row: dict[str, Any]):
    tally = RowTally()
    with pytest.raises(BadRow) as caught:
        read(row)
    tally.left_out("rows.jsonl:1", caught.value)
    assert (tally.read, tally.num_bad) == (1, 0)


def test_what_both_begin_with_is_only_read():
    talk = [ASK, BACK, ASK]
    found = read(
        {"better": [*talk, GOOD], "worse": [*talk, BAD]}, chosen="better", rejected="worse"
    )
    assert [answer.untrained for answer in found.answers] == [frozenset({1})] * 2
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    given = {"messages": [ASK], "tools": [tool]}
    found = read({"input": given, "preferred_output": [GOOD], "non_preferred_output": [BAD]})
    assert [tool.name for tool in found.answers[1].tools] == ["look"]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "responses": ["No.", "Hello!", "Hm."], "scores": [1, 9, 4]},
        {"prompt": [ASK], "answers": [[BAD], [GOOD], "Hm."], "ratings": "[1, 9, 4.0]"},
        {
            "instruction": "Hi",
            "completions": [
                {"response": "No.", "overall_score": 1},
                {"response": "Hello!", "overall_score": 9, "model": "x"},
                {"response": "Hm.", "overall_score": 4},
            ],
        },
    ],
    ids=["scores", "json", "ultrafeedback"],
)
def test_a_scored_list_makes_all_its_pairs(row: dict[str, Any]):
    found = read(row)
    assert texts(found) == ["No.", "Hello!", "Hm."]
    assert set(found.pairs) == {(1, 0, 8.0), (1, 2, 5.0), (2, 0, 3.0)}
    assert found.names == ["answer 1", "answer 2", "answer 3"]


def test_of_two_answers_in_a_list_the_better_one_is_called_chosen():
    listed = {"prompt": "q0", "responses": ["BAD", "GOOD"]}
    for row in (listed | {"scores": [1, 9]}, listed | {"ranks": [2, 1]}):
        found = read(row)
        assert texts(found) == ["BAD", "GOOD"]
        assert found.names == ["rejected", "chosen"]
        assert found.worth[1] > found.worth[0]


def test_messages_that_are_marked_so_are_only_read():
    said = [ASK, BACK | {"weight": 0}, ASK, GOOD]
    found = read({"chosen": said, "rejected": [ASK, BAD, ASK, BACK | {"train": False}]})
    assert [answer.untrained for answer in found.answers] == [{1}, {3}]


def test_ranks_have_no_margins_and_equal_ones_make_no_pair():
    nectar = [{"answer": text, "rank": rank} for text, rank in (("a", 2.0), ("b", 1.0), ("c", 2.0))]
    for row in (
        {"prompt": "Hi", "answers": nectar},
        {"prompt": "Hi", "answers": ["a", "b", "c"], "ranks": [2, 1, 2]},
    ):
        assert set(read(row).pairs) == {(1, 0, 0.0), (1, 2, 0.0)}


@pytest.mark.parametrize(
    ("more", "columns", "margin"),
    [
        ({"margin": 1.5}, {}, 1.5),
        ({"score_chosen": 9, "score_rejected": "4.0"}, {}, 5.0),
        ({"chosen-rating": 4.5, "rejected-rating": 4}, {}, 0.5),
        ({"rejected_score": 1, "chosen_score": 3}, {}, 2.0),
        ({"gap": 2}, {"margin": "gap"}, 2.0),
    ],
)
def test_a_pair_may_say_its_margin(more: dict[str, Any], columns: dict[str, str], margin: float):
    row = {"prompt": "Hi", "chosen": "a", "rejected": "b", **more}
    found = read(row, **columns)
    assert found.pairs == ((0, 1, margin),)
    assert found.has_margin == any(name in more for name in ("margin", "gap"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "completion": "Yo", "label": True},
        {"prompt": "Hi", "response": "Yo", "label": "1"},
        {"prompt": [ASK], "completion": [BACK], "label": 1.0},
        {"messages": [ASK, BACK], "label": "True"},
        {"messages": [ASK, BACK], "kto_tag": True, "columns": "label=kto_tag"},
    ],
)
def test_an_answer_with_a_verdict(row: dict[str, Any]):
    name, _, column = row.pop("columns", "").partition("=")
    found = read(row, **({name: column} if name else {}))
    assert [answer.messages for answer in found.answers] == [
        (Message("user", "Hi"), Message("assistant", "Yo"))
    ]
    assert (found.pairs, found.is_good) == ((), True)


@pytest.mark.parametrize(
    ("row", "worth", "has_scores"),
    [
        ({"prompt": "Hi", "chosen": "a", "rejected": "b"}, (1, 0), False),
        (
            {
                "prompt": "Hi", "chosen": "a", "rejected": "b",
                "score_chosen": 9, "score_rejected": 4,
            },
            (9, 4), True,
        ),
        ({"prompt": "Hi", "answers": ["a", "b", "c"], "ranks": [2, 1, 2]}, (-2, -1, -2), False),
        ({"prompt": "Hi", "answers": ["a", "b"], "scores": [0.5, 3]}, (0.5, 3), True),
        ({"prompt": "Hi", "completion": "a", "label": False}, (0,), True),
        ({"prompt": "Hi", "completion": "a", "score": "3.5"}, (3.5,), True),
        ({"messages": [ASK, BACK], "stars": 4, "columns": "score=stars"}, (4,), True),
    ],
)  # fmt: skip
def test_what_each_answer_is_worth(row: dict[str, Any], worth: Any, has_scores: bool):
    name, _, column = row.pop("columns", "").partition("=")
    found = read(row, **({name: column} if name else {}))
    assert (found.worth, found.has_scores) == (worth, has_scores)


SCORED = [{"text": "a", "quality": 1}, {"text": "b", "quality": 9}]


@pytest.mark.parametrize(
    ("row", "columns", "pairs", "worth"),
    [
        (
            {"responses": ["a", "b"], "scores": [1, 0], "ranks": [2, 1]},
            {"ranks": "ranks"}, ((1, 0, 0.0),), (-2, -1),
        ),
        (
            {"response": "a", "helpfulness": 3.5, "label": 1},
            {"score": "helpfulness"}, (), (3.5,),
        ),
        (
            {"chosen": "x", "rejected": "y", "cands": ["a", "b"], "scores": [1, 3]},
            {"answers": "cands", "scores": "scores"}, ((1, 0, 2.0),), (1, 3),
        ),
        (
            {"label": "math", "cands": ["a", "b"], "marks": [1, 3]},
            {"answers": "cands", "scores": "marks"}, ((1, 0, 2.0),), (1, 3),
        ),
        ({"label": "math", "best": "a", "rejected": "b"}, {"chosen": "best"}, ((0, 1, 0),), (1, 0)),
        ({"answers": SCORED}, {"scores": "quality"}, ((1, 0, 8.0),), (1, 9)),
    ],
)  # fmt: skip
def test_a_column_that_is_named_counts_before_what_else_a_row_has(
    row: dict[str, Any], columns: dict[str, str], pairs: Any, worth: Any
):
    found = read({"prompt": "Hi", **row}, **columns)
    assert (found.pairs, found.worth) == (pairs, worth)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": "good", "score": "stars"}, "names `label` .a verdict. and `score` .a score."),
        ({"chosen": "best", "ranks": "places"}, "names `chosen` .a pair. and `ranks` .a list."),
        ({"scores": "marks", "ranks": "places"}, "names `scores` and `ranks`"),
    ],
)
def test_columns_name_one_form_of_a_row(columns: dict[str, str], said: str):
    with pytest.raises(ValidationError, match=said):
        PairColumns(**columns)


def test_the_system_message_of_an_answers_conversation_comes_first():
    lead = {"role": "system", "content": "Be kind."}
    for prompt in ("Hi", [ASK]):
        found = read({"prompt": prompt, "chosen": [lead, ASK, GOOD], "rejected": [lead, ASK, BAD]})
        assert [message.role for message in found.answers[1].messages] == [
            *("system", "user", "assistant")
        ]
    with pytest.raises(BadRow, match="do not begin with the same messages"):
        read({"prompt": "Hi", "chosen": [lead, ASK, GOOD], "rejected": [ASK, BAD]})


def test_two_answers_are_a_good_and_a_bad_one_whatever_their_scores():
    scored = {"prompt": "Hi", "chosen": "a", "rejected": "b", "score_chosen": 9}
    assert read({**scored, "score_rejected": 8}).goodness == (1, 0)
    assert read({"prompt": "Hi", "answers": ["a", "b"], "scores": [0.1, 0.4]}).goodness == (0, 1)
    assert read({"prompt": "Hi", "completion": "a", "score": 0.7}).goodness == (0.7,)


@pytest.mark.parametrize("score", ["good", None, True])
def test_a_score_is_a_number(score: Any):
    with pytest.raises(BadRow, match=r"stars: .* is no number"):
        read({"prompt": "Hi", "completion": "a", "stars": score}, score="stars")


def test_only_the_last_answer_has_the_verdict():
    found = read({"messages": [ASK, BACK, ASK, BAD], "label": False})
    assert found.answers[0].untrained == {1}
    assert (found.is_good, found.names) == (False, ["bad"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "Hi", "chosen": "a"}, "has no column rejected"),
        ({"prompt": "Hi", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
        (
            {"prompt": "Hi", "chosen_response": "a", "rejected_response": "b"},
            "name it, e.g. columns.chosen: chosen_response",
        ),
        ({"chosen": [ASK, GOOD], "rejected": [BACK, BAD]}, "rejected: the assistant speaks first"),
        (
            {"chosen": [ASK, GOOD], "rejected": [ASK | {"content": "Ho"}, BAD]},
            "do not begin with the same messages",
        ),
        (
            {"prompt": "Hi ", "chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
            "chosen: begins with another question than the prompt",
        ),
        ({"chosen": "Hello!", "rejected": "No."}, "a text without a prompt must begin with"),
        ({"chosen": f"{HH}", "rejected": f"{HH} Yo"}, "chosen: its last turn says nothing"),
        ({"prompt": "Hi", "chosen": [GOOD], "rejected": [BLANK]}, "the assistant says nothing"),
        ({"input": {}, "preferred_output": [GOOD]}, "input: has no messages"),
        ({"prompt": "Hi", "responses": ["a", "b"]}, "nothing says which answer is better"),
        ({"prompt": "Hi", "responses": ["a"], "scores": [1]}, "no list of two answers or more"),
        ({"prompt": "Hi", "responses": ["a", "b"], "scores": [1]}, "2 answers have 1 numbers"),
        ({"prompt": "Hi", "responses": ["a", "b"], "scores": [1, "x"]}, "'x' is no number"),
        ({"prompt": "Hi", "responses": ["a", "b"], "scores": [2, 2]}, "no answer is better"),
        ({"prompt": "Hi", "responses": ["a", "a"], "scores": [1, 2]}, "are equal"),
        (
            {"prompt": "Hi", "chosen": "a", "rejected": "b", "margin": -1},
            "says that the rejected answer is the better one",
        ),
        ({"prompt": "Hi", "completion": "a", "label": "maybe"}, "'maybe' is no verdict"),
        (
            {
                "prompt": "Hi",
                "chosen": "a",
                "rejected": "b",
                "rating_chosen": 7,
                "rating_rejected": 7,
            },
            "rating_chosen and rating_rejected: say that the chosen answer is not the better one",
        ),
        (
            {
                "prompt": "Hi",
                "chosen": "a",
                "rejected": "b",
                "margin": 1,
                "score_chosen": 3,
                "score_rejected": 4,
            },
            "is not the better one",
        ),
        ({"prompt": "Hi", "completion": "a", "label": True, "weight": 0.5}, "weight: comparisons"),
        ({"prompt": "Hi", "responses": ["a", "b"], "ranks": [1, 2], "weight": 2}, "count alike"),
    ],
)
def test_a_row_that_is_no_pair_is_refused(row: dict[str, Any], said: str):
    with pytest.raises(BadRow, match=said):
        read(row)
