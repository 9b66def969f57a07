"""What a row says twice, or of its own worth, makes it a bad one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curricula.prompt_files.prompt import Prompt, read_prompt
from curricula.prompt_files.spec import PromptSource
from curricula.rows.columns import Columns
from curricula.rows.conversation import Conversation
from curricula.rows.layouts import read_row
from engines.types import Message
from infra.data_files.bad_row import BadRow

pytestmark = pytest.mark.unit

ASK, ANSWER = {"role": "user", "content": "12+30"}, {"role": "assistant", "content": "42"}
SAID = (Message("user", "12+30"), Message("assistant", "42"))


def sft(row: dict[str, Any]) -> Conversation:
    return read_row(row, Columns(), "auto")


def prompt(row: dict[str, Any], **fields: Any) -> Prompt:
    return read_prompt(row, PromptSource.model_validate({"files": ["a.jsonl"], **fields}))


def talk(*said: Any) -> dict[str, Any]:
    return {"messages": list(said)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        *[(talk(ASK, ANSWER) | {"label": each}, "has `label`") for each in (False, True, 0, "1")],
        ({"prompt": "12+30", "completion": "42", "label": 0}, "has `label`"),
        (talk(ASK, ANSWER) | {"kto_tag": False}, "has `kto_tag`"),
        (talk(ASK, ANSWER) | {"chat_template_kwargs": {"a": False}}, "has `chat_template_kwargs`"),
        (talk(ASK, ANSWER | {"train_detail": [{"train": False}]}), "has `train_detail`"),
        (
            talk(ASK, ANSWER | {"content": "<think>a</think>42", "reasoning": "a"}),
            "has a thought beside its text, and one in it",
        ),
        (
            {"prompt": "12+30 ", "completion": [ASK, ANSWER]},
            "completion: begins with another question than the prompt",
        ),
    ],
)
def test_what_says_more_than_is_read_makes_a_bad_row(row: dict[str, Any], said: str):
    with pytest.raises(BadRow, match=said):
        sft(row)


def test_a_label_of_other_values_is_listed_and_a_repeated_question_counts_once():
    assert sft(talk(ASK, ANSWER) | {"label": "sums", "n": 1}).unread == {"label", "n"}
    assert sft({"prompt": "12+30", "completion": [ASK, ANSWER]}).messages == SAID


def test_two_references_must_say_the_same():
    row = {"prompt": "12+30", "answer": "First 12.", "final_answer": "42"}
    with pytest.raises(BadRow, match="has answer and final_answer, which differ"):
        prompt(row)
    assert prompt(row, columns={"reference": "final_answer"}).reference == {"answer": "42"}
    same = {"prompt": "12+30", "answer": "It is 42.\n#### 42", "final_answer": 42.0}
    assert prompt(same).reference == {"answer": "42"}
    written = {"prompt": "12+30", "reward_model": json.dumps({"ground_truth": "42"})}
    assert prompt(written).reference == {"answer": "42"}
