"""Names that carry meaning, in forms that other programs give them, and names that only look so."""

from __future__ import annotations

from typing import Any

import pytest

from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import read_judged
from infra.data_files.rows import BadRow, Reason
from tests.parts.row_parts import ANSWER, ASK, prompt, refusal, sft, talk

pytestmark = pytest.mark.unit

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
QA = {"question": "12+30", "answer": "42"}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        *((talk(ASK, ANSWER, **{name: value}), name) for name, value in {
            "disable_thinking": True, "use_template": False, "thinkingBudget": 5,
            "reasoning_effort": "high",
            "chat_template": "x", "documents": ["Ann came."], "Passages": ["a"], "prompt": "13+30",
            "image_path": "a.png", "imageUrls": ["a"], "audio_file": "a.wav", "no_loss": True,
            "assistant_masks": [0], "train_on_input": True, "available_tools": [LOOK],
            "tool_schemas": "[{}]", "Tools": [LOOK], "instructions": "Be brief.", "System": "Be.",
            "systemInstruction": "Be.", "derivation": "As.", "chain_of_thought": "As.",
            "add_eos": False, "SkipLoss": 1, "train_on_last_turn_only": True,
            "roles_to_train": ["user"], "loss_multiplier": 0.0, "trainLastOnly": 1,
        }.items()),
        *((talk(ASK, ANSWER | {name: value}), name) for name, value in {
            "no_loss": True, "noLoss": False, "masked_tokens": [1], "end_of_turn": False,
            "no_eos": True, "prefix": True, "image_path": "a", "available_functions": [{}],
            "documents": ["a"], "reasoning_effort": "low", "rationale": "As.",
        }.items()),
        (QA | {"question": "Hi", "prompt": "History of Rome?"}, "question"),
        (QA | {"question": "Hi", "instruction": "What is High?"}, "question"),
        *((QA | {name: value}, name) for name, value in {
            "starter_code": "def f():",
            "passage": "Ann came.", "gold_evidence": "a", "A": "42", "option_b": "42", "opa": "4",
            "answer_choices": ["42"], "distractor1": "41", "completion_mask": [1], "input": "mod 3",
            "rationale": "As.", "solution": "12+30 is 42", "query": "13+30",
        }.items() if name != "A"),
        (QA | {"A": "42", "B": "41", "C": "0"}, "A"),
        ({"instruction": "a", "input": "b", "context": "c", "output": "d"}, "context"),
        ({"instruction": "Add", "prompt": "1+2", "output": "3"}, "prompt"),
    ],
)  # fmt: skip
def test_names_that_carry_meaning_are_refused_in_every_form(row: dict[str, Any], name: str):
    assert f"has `{name}`, which is not read" in refusal(row)


@pytest.mark.parametrize(
    ("row", "name"),
    [
        *((talk(ASK, ANSWER, **{name: value}), name) for name, value in {
            "prompt": "12+30", "image_count": 2, "has_image": False, "training_source": "web",
            "thinking_tokens": 7, "num_tools": 1, "api": "GET", "label": "maths", "end": 17,
            "end_of_turn": True, "system_id": "a", "context_length": 7, "template_name": "t",
            "explanation": "As 12 and 30 are 42.",
        }.items()),
        ({"instruction": "12+30", "output": "42", "prompt": "Do:\n12+30\nSay: 42"}, "prompt"),
        ({"problem": "12+30", "solution": "It is 42", "answer": "42"}, "answer"),
    ],
)  # fmt: skip
def test_names_that_only_look_like_meaning_are_listed(row: dict[str, Any], name: str):
    assert sft(row).unread == {name}


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("<image>\nWhat is it?", True),
        ("What is on <image_2>, <image1>?", True),
        ("<|vision_start|><|image_pad|><|vision_end|>What?", True),
        ("<|audio|>What?", True),
        ("[IMG] What?", True),
        ("Look at the <image> and answer.", True),
        ("What does `<image>` do?", False),
        ("What does the <image> tag do?", False),
        ('What does "<image>" mean?', False),
        ("What is wrong with <video><source></video>?", False),
        ("<b>[1] Who?", False),
    ],
)
def test_a_placeholder_of_what_is_not_shown_makes_a_question_bad(text: str, is_bad: bool):
    for read, row in ((sft, QA | {"question": text}), (prompt, {"prompt": text, "answer": "4"})):
        if is_bad:
            with pytest.raises(BadRow, match="which stands for something that no model here"):
                read(row)
        else:
            assert read(row).messages[0].content == text


@pytest.mark.parametrize("verdict", ["good", "Bad", 1.0, -1, "rejected", "incorrect"])
@pytest.mark.parametrize("name", ["label", "kto_tag", "is_correct", "Desirable"])
def test_a_verdict_on_the_answer_is_refused(name: str, verdict: Any):
    assert f"has `{name}`, which says whether" in refusal(QA | {name: verdict})


@pytest.mark.parametrize(
    ("name", "value", "is_cut"),
    [
        ("finish_reason", "length", True),
        ("finishReason", "MAX_TOKENS", True),
        ("stop_reason", "max_tokens", True),
        ("finish_reason", "content_filter", True),
        ("truncated", True, True),
        ("is_truncated", "true", True),
        ("response_incomplete", 1, True),
        ("finish_reason", "stop", False),
        ("stop_reason", "end_turn", False),
        ("stop", ["length"], False),
        ("truncated", False, False),
        ("truncated_title", True, False),
        ("length", 4, False),
    ],
)
def test_an_answer_that_was_cut_off_is_refused(name: str, value: Any, is_cut: bool):
    asked, answer = talk(ASK | {name: value}, ANSWER), talk(ASK, ANSWER | {name: value})
    assert sft(asked).unread == {f"messages[].{name}"}
    for row, where in ((QA | {name: value}, ""), (answer, "messages[1]: ")):
        if is_cut:
            said = f"{where}has `{name}` {str(value).lower()}, so its answer was cut off; a model"
            assert refusal(row).startswith(said)
            assert sft(talk(ASK, answer["messages"][1] | {"weight": 0}, ASK, ANSWER)).untrained == {
                1
            }
        else:
            assert sft(row).unread in ({name}, {f"messages[].{name}"})


def test_a_prompt_says_whether_a_thought_is_asked_for():
    assert prompt(QA).thinking is None
    assert prompt(QA | {"enable_thinking": False}).thinking is False
    assert prompt(QA | {"enable_thinking": "True"}).thinking is True, "a cell of CSV is a text"
    found = prompt(QA | {"reasoning": "on", "chat_template_kwargs": {"enable_thinking": True}})
    assert (found.thinking, found.unread) == (True, frozenset())
    assert prompt(QA | {"thinking": "Add the tens."}).thinking is None, "a thought is no switch"
    with pytest.raises(BadRow, match="`enable_thinking` and `use_thinking`, of which"):
        prompt(QA | {"enable_thinking": True, "use_thinking": False})


def test_named_columns_let_others_stay():
    unread = sft(talk(ASK, ANSWER, documents=["a"], prompt="b"), messages="messages").unread
    assert unread == {"documents", "prompt"}
    for both in ("passage+question", "passage + question"):
        named = {"prompt": both, "completion": "answer"}
        read = sft(QA | {"passage": "Ann came.", "explanation": "As."}, **named)
        assert (read.messages[0].content, read.unread) == ("Ann came.\n12+30", {"explanation"})
    for name in ("image_path", "System", "available_tools", "passage", "query", "enable_thinking"):
        with pytest.raises(BadRow, match=f"has `{name}`, which is not read"):
            prompt(QA | {name: "[]{}"})


BAD = {
    "is_correct": False, "correct": 0, "label": "bad", "correctness": "incorrect", "valid": False,
    "keep": 0.0, "deleted": True, "is_invalid": "yes", "status": "incomplete",
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD.items())
def test_an_answer_that_its_row_or_its_message_calls_bad_is_refused(name: str, value: Any):
    assert f"has `{name}`" in refusal(talk(ASK, ANSWER, **{name: value}))
    assert f"messages[1]: has `{name}`" in refusal(talk(ASK, ANSWER | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("correct", True), ("valid", 1), ("keep", True), ("status", "completed")]
)
def test_a_good_answer_may_be_called_good(name: str, value: Any):
    assert sft(talk(ASK, ANSWER | {name: value})).unread == {f"messages[].{name}"}


def test_a_rejected_answer_may_be_called_bad_and_a_tie_is_no_pair():
    bad = {name: value for name, value in BAD.items() if name != "status"}
    row = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [ANSWER | {"content": "4"} | bad]}
    assert read_judged(row | {"winner": "chosen"}, PairColumns(), "auto").answers[1].messages
    said = {"winner": "tie", "preference": "rejected", "is_tie": True, "status": "tie"}
    for name, value in said.items():
        with pytest.raises(BadRow, match=f"has `{name}` .* is not the better one") as caught:
            read_judged(row | {name: value}, PairColumns(), "auto")
        assert (caught.value.reason == Reason.UNDECIDED) is (value != "rejected")
