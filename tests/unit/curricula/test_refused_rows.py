"""What a row says twice, of its own worth, or in a form that nothing reads makes it a bad one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from curricula.rows.conversation import Columns
from curricula.rows.layouts import read_row
from curricula.rows.pair_columns import PairColumns
from curricula.rows.pairs import read_judged
from engines.types import Message, ToolCall
from infra.data_files.rows import BadRow
from tests.parts.row_parts import ANSWER, ASK, prompt, refusal, sft, talk

pytestmark = pytest.mark.unit

QA = {"prompt": "12+30", "completion": "42"}
SAID = (Message("user", "12+30"), Message("assistant", "42"))
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


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
        (talk(ASK, ANSWER) | {"history": [["1+1", "2"]]}, "has `history`"),
        (QA | {"chat_history": ["1+1", "2"]}, "has `chat_history`"),
        (talk(ASK, ANSWER | {"content_weight": 0}), "has `content_weight`"),
        (talk(ASK, ANSWER | {"tool_plan": "Add."}), "has `tool_plan`, .* looks like a thought"),
        *[
            (talk(ASK, ANSWER) | {name: value}, f"has `{name}` {str(value).lower()}, so its answer")
            for name, value in {
                "passed": False, "resolved": "false", "is_success": 0, "chosen": False,
                "all_tests_passed": "No", "failed": True, "rejected": 1,
            }.items()
        ],
    ],
)  # fmt: skip
def test_what_says_more_than_is_read_makes_a_bad_row(row: dict[str, Any], said: str):
    with pytest.raises(BadRow, match=said):
        sft(row)


def test_a_label_of_other_values_is_listed_and_a_repeated_question_counts_once():
    assert sft(talk(ASK, ANSWER) | {"label": "sums", "n": 1}).unread == {"label", "n"}
    assert sft({"prompt": "12+30", "completion": [ASK, ANSWER]}).messages == SAID
    more = {"passed": True, "success": 1, "chosen": "42", "failed": 0, "resolved_at": False}
    assert sft(QA | more).unread == set(more)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"thinking": "Add.", "signature": "x"}, ""),
        ({"thinking": [{"type": "text", "text": "Add."}], "closed": True}, ""),
        ({"text": "Add."}, "of type 'thinking' says nothing under `thinking`; it has type, text"),
        ({}, "of type 'thinking' says nothing under `thinking`; it has type"),
        ({"thinking": "Add.", "closed": False}, "has `closed` false: its thought is cut off"),
        ({"thinking": "Add.", "summary": "A."}, "has `summary`, which is not read"),
    ],
)
def test_a_thought_among_the_parts_is_read_whole_or_refused(part: dict[str, Any], said: str):
    parts = [{"type": "thinking"} | part, {"type": "text", "text": "42"}]
    row = talk(ASK, {"role": "assistant", "content": parts})
    if said:
        assert refusal(row) == f"messages[1]: a part {said}"
    else:
        assert sft(row).messages[1] == Message("assistant", "42", "Add.")


def test_two_references_must_say_the_same():
    row = {"prompt": "12+30", "answer": "First 12.", "final_answer": "42"}
    with pytest.raises(BadRow, match="has answer and final_answer, which differ"):
        prompt(row)
    assert prompt(row, columns={"reference": "final_answer"}).reference == {"answer": "42"}
    same = {"prompt": "12+30", "answer": "It is 42.\n#### 42", "final_answer": 42.0}
    assert prompt(same).reference == {"answer": "42"}
    written = {"prompt": "12+30", "reward_model": json.dumps({"ground_truth": "42"})}
    assert prompt(written).reference == {"answer": "42"}
    assert prompt(written | {"answer": 42}).reference == {"answer": 42}
    with pytest.raises(BadRow, match=r"has answer and reward_model\.ground_truth, which differ"):
        prompt(written | {"answer": "12"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("analysis", "12 and 30"),
        ("analysis_content", "12 and 30"),
        ("reasoning_details", [{"type": "reasoning.text", "text": "a"}]),
        ("reasoningContent", {"reasoningText": {"text": "a"}}),
        ("thinking_blocks", [{"type": "thinking", "thinking": "a"}]),
        ("chain_of_thought", "a"),
        ("cot", "a"),
        ("rationale", "a"),
    ],
)
def test_a_thought_under_a_name_that_is_not_read_makes_a_bad_row(name: str, value: Any):
    with pytest.raises(BadRow, match=rf"^messages\[1\]: has `{name}`, which is not read and looks"):
        sft(talk(ASK, ANSWER | {name: value}))
    with pytest.raises(BadRow, match=f"^has `{name}`, which is not read and looks like a"):
        sft({"question": "12+30", "answer": "42", name: value})
    named = Columns(prompt="question", completion="answer")
    row = {"question": "12+30", "answer": "42", name: value}
    assert read_row(row, named, "auto").unread == {name}


def test_figures_of_a_thought_are_no_thought():
    beside = {"reasoning_tokens": 3, "thinking_ms": 3, "rationale": ""}
    read = sft(talk(ASK, ANSWER | beside | {"sentiment_analysis": "fine", "scotland": "a"}))
    assert read.messages == SAID
    assert "messages[].sentiment_analysis" in read.unread


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"channel": "analysis"}, "channel is 'analysis'"),
        ({"recipient": "functions.f"}, "recipient is"),
    ],
)
def test_what_the_assistant_says_to_itself_or_to_a_tool_is_no_answer(more: Any, said: str):
    with pytest.raises(BadRow, match=rf"^messages\[1\]: {said}"):
        sft(talk(ASK, ANSWER | more))
    final = sft(talk(ASK, ANSWER | {"channel": "final", "recipient": "all"}))
    assert (final.messages, final.unread) == (SAID, set())


def calls(*names: str) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": made}


RESULT = {"role": "tool", "content": "7"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "add")]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ((ASK, calls("look", "add"), RESULT, ANSWER), r"\[1\]: it makes 2 calls, and 1 results"),
        ((ASK, calls("look"), ASK, ANSWER), r"\[1\]: it makes 1 calls, and 0 results follow"),
        (
            (ASK, calls("look"), RESULT, RESULT, ANSWER),
            r"\[3\]: a tool answers, but was not called",
        ),
        ((ASK, ANSWER, RESULT, ANSWER), r"\[2\]: a tool answers, but was not called; calls are"),
        ((ASK, RESULT, ANSWER), r"\[1\]: a tool answers, but was not called"),
        ((ASK, calls("sub"), RESULT, ANSWER), r"\[1\]: calls sub, which is not among .* add, look"),
    ],
)
def test_calls_results_and_tools_of_a_row_must_fit(said: Any, fault: str):
    row = talk(*said) | {"tools": TOOLS}
    with pytest.raises(BadRow, match=rf"^messages{fault}"):
        sft(row)
    with pytest.raises(BadRow, match=rf"^messages{fault}"):
        prompt(talk(*said, ASK) | {"tools": TOOLS})
    pair = {"prompt": [ASK], "chosen": list(said[1:]), "rejected": [ANSWER], "tools": TOOLS}
    with pytest.raises(BadRow, match=rf"^chosen: messages{fault}"):
        read_judged(pair, PairColumns(), "auto")


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"at": "string"}, "its parameters are no JSON schema: write the type of at as"),
        ({"at": "str", "n": "int"}, "its parameters are no JSON schema: write the type of at as"),
        ({"type": "string"}, "its parameters are of the type string"),
        ({"type": "object", "properties": ["at"]}, "its `properties` are no object"),
        ({"type": "object", "properties": {}, "required": ["at"]}, "it requires at, which is none"),
        ({"properties": {"at": {"type": "string"}}, "required": "at"}, "its `required` is no list"),
    ],
)
def test_a_tool_that_no_call_would_fit_is_bad(parameters: dict[str, Any], fault: str):
    tool = {"name": "look", "parameters": parameters}
    with pytest.raises(BadRow, match=rf"^tools\[0\]: look: {fault}"):
        prompt({"prompt": "Look.", "answer": "7", "tools": [tool]})
    with pytest.raises(BadRow, match=rf"^tools\[0\]: look: {fault}"):
        sft(talk(ASK, ANSWER) | {"tools": json.dumps([tool])})


@pytest.mark.parametrize(
    "parameters",
    [
        {"at": {"type": "string"}},
        {"type": {"type": "string"}},
        {"type": "object", "description": "string"},
        {"anyOf": [{"properties": {"at": {}}, "required": ["at"]}], "required": ["at"]},
        {"type": "object", "required": ["at"], "additionalProperties": True},
        {"type": "object", "properties": None, "required": None},
        None,
    ],
)
def test_a_tool_whose_parameters_are_written_in_another_way_is_read(parameters: Any):
    tool = {"name": "look", "parameters": parameters}
    assert len(prompt({"prompt": "Look.", "answer": "7", "tools": [tool]}).tools) == 1


def test_the_last_calls_of_a_row_have_no_results_and_tools_that_are_not_listed_may_be_called():
    assert len(sft(talk(ASK, calls("look", "add")) | {"tools": TOOLS}).messages) == 2
    assert len(sft(talk(ASK, calls("sub"), RESULT, ANSWER)).messages) == 4
    asked = prompt(talk(ASK, calls("look", "add"), RESULT, RESULT) | {"tools": TOOLS})
    assert [m.role for m in asked.messages] == ["user", "assistant", "tool", "tool"]
    with pytest.raises(BadRow, match="it makes 2 calls, and 1 results follow"):
        prompt(talk(ASK, calls("look", "add"), RESULT) | {"tools": TOOLS})


def test_tools_of_one_name_must_be_one_tool():
    look = {"name": "look", "description": "Look."}
    assert len(sft(talk(ASK, ANSWER) | {"tools": [look, look]}).tools) == 2
    with pytest.raises(BadRow, match="tools: two have the name look, and differ"):
        sft(talk(ASK, ANSWER) | {"tools": [look, {"name": "look"}]})


@pytest.mark.parametrize("is_sharegpt", [False, True])
@pytest.mark.parametrize(
    "text", ["42", " 42\n", "\u00fcber \U0001f600", "", " ", "\ud83d", None, 4, ["4"]]
)
@pytest.mark.parametrize(
    "role", ["assistant", "gpt", " Assistant", "user", "tool", "boss", None, 3, []]
)
def test_a_message_of_a_role_and_a_text_is_read_as_one_with_more(
    role: Any, text: Any, is_sharegpt: bool
):
    """What most messages look like is read on a shorter way, to the same end."""
    names = ("from", "value") if is_sharegpt else ("role", "content")
    asked = dict(zip(names, ("user", "12+30"), strict=True))

    def outcome(more: dict[str, Any]) -> Any:
        said = dict(zip(names, (role, text), strict=True)) | more
        try:
            return sft({"conversations" if is_sharegpt else "messages": [asked, said]})
        except BadRow as error:
            return error.reason, str(error)

    assert outcome({}) == outcome({"name": None})


@pytest.mark.parametrize(
    "more", [{"id": 3}, {"system": "Be brief."}, {"weight": 0.5}, {"tools": []}, {"label": True}]
)
def test_columns_beside_the_messages_count_as_before(more: dict[str, Any]):
    row = {"messages": [ASK, ANSWER]}
    bare = sft(row)
    assert (bare.weight, bare.unread, bare.tools) == (1.0, frozenset(), ())
    if "label" in more:
        with pytest.raises(BadRow, match="has `label`"):
            sft(row | more)
        return
    read = sft(row | more)
    assert read.weight == more.get("weight", 1.0)
    assert read.unread == ({"id"} if "id" in more else frozenset())
    assert (read.messages == bare.messages) is ("system" not in more)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"version": 1, "data": [{"a": "b"}]}, "it is no row, but holds rows in `data`"),
        ({"problem": "a", "generated_solution": "b"}, "e.g. `columns.completion: generated_sol"),
        (ASK, "it is one message, and a row is a whole conversation"),
        ({"from": "human", "value": "a"}, "it is one message"),
        ({"input_ids": [1, 2], "labels": [-100, 2]}, "`input_ids` holds ids of tokens, which"),
        (talk(ASK, ANSWER, labels=[-100, 2]), "has `labels`, ids of tokens of which those with"),
        ({"prompt": "a", "completion": "b", "labels": [-100, 2]}, "mark messages with `weight: 0`"),
        ({"prompt": [1, 2], "completion": "b"}, "prompt: holds ids of tokens, which are not read"),
        ({"prompt": "a", "completion": ["b", "c"]}, "is no object but a text; one text of a list"),
        ({"messages": {"0": [ASK, ANSWER]}}, "write the table with `to_json(orient='records')`"),
        ({"conversation": [{"human": "a", "assistant": "b"}]}, "has no `role`; it has human, ass"),
        (talk(ASK, ANSWER | {"content": "\u200b\ufeff "}), "the assistant says nothing"),
        ({"prompt": "a", "completion": "\u200b"}, "completion: is empty"),
        (talk(ASK, {"role": "tool_call", "content": "{}"}), "; calls are read from `tool_calls`"),
        (
            talk(ASK, {"role": "assistant", "content": [{"type": "tool_use", "name": "look"}]}),
            "a part of type 'tool_use' is no text; calls are read from `tool_calls`",
        ),
        (
            talk(ASK | {"content": '[{"type": "text", "text": "12+30"}]'}, ANSWER),
            "messages[0]: its `content` is a list of parts as JSON text; write it as a list",
        ),
        (
            talk(ASK, {"from": "gpt", "value": "42"}),
            "[1]: has no `role`; it has from, value; by the first message or `format`",
        ),
        (
            {"conversations": [{"from": "human", "value": "12+30"}, ANSWER]},
            "[1]: has no `from`; it has role, content; by the first message",
        ),
        ({"body": talk(ASK, ANSWER)}, "`body.messages` looks like messages: name it in columns"),
        (
            {"question": "a", "answers": {"text": ["b"]}},
            "name both, as `columns.prompt: question` and `columns.completion: answers`",
        ),
        (
            talk(ASK, ANSWER, tools=[{"type": "custom", "name": "grep"}]),
            "tools[0]: is of type 'custom'; what is read is a function with `parameters`",
        ),
        (
            talk(ASK, ANSWER, tools="[{'name': 'look'}]"),
            "it is written as Python prints it: write it with json.dumps",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_the_row_is_and_what_to_do(row: dict[str, Any], said: str):
    assert said in refusal(row)


def test_an_answer_that_is_nothing_but_calls_of_the_rows_tools_makes_them():
    calls = [{"name": "look", "arguments": {"at": "x"}}, {"name": "look", "arguments": {}}]
    row = {"query": "Where?", "tools": json.dumps([LOOK]), "answers": json.dumps(calls)}
    for said in (json.dumps(calls), calls):
        read = sft(row | {"answers": said})
        made = (ToolCall("look", {"at": "x"}), ToolCall("look", {}))
        assert (read.messages[1], read.layout) == (
            Message("assistant", "", None, made),
            "query -> answers",
        )
    other = [{"name": "walk", "arguments": {}}]
    assert "calls walk, which is not among the row's tools" in refusal(row | {"answers": other})
    as_text = sft({"query": "Where?", "answers": json.dumps(calls)})
    assert as_text.messages[1].content == json.dumps(calls), "without tools it is a text"
    listed = sft(row | {"answers": '["x", {"name": "look"}]'})
    assert listed.messages[1].content == '["x", {"name": "look"}]'


def test_one_item_of_a_list_is_named_by_its_place():
    row = {"problem": "12+30", "generations": ["42", "41"], "is_reasoning_complete": [True, False]}
    read = sft(row, prompt="problem", completion="generations.1")
    assert (read.messages[1].content, read.unread) == ("41", {"is_reasoning_complete"})
    nested = {"instruction": "12+30", "completions": json.dumps([{"response": "42"}])}
    named = {"prompt": "instruction", "completion": "completions.0.response"}
    assert sft(nested, **named).messages == SAID
    assert "generations: has 2 items; the first is 0" in refusal(
        row, prompt="problem", completion="generations.2"
    )


@pytest.mark.parametrize("name", ["reasoning", "enable_thinking", "chat_template_kwargs"])
@pytest.mark.parametrize("thinks", [False, True])
def test_a_column_that_turns_thinking_on_or_off_says_what_the_answer_does(name: str, thinks: bool):
    answer = ANSWER | ({"content": "<think>Add.</think>42"} if thinks else {})
    for said in (thinks, not thinks):
        value: Any = "on" if said else "off"
        if name != "reasoning":
            value = said if name == "enable_thinking" else {"enable_thinking": said, "tools": []}
        for row in (talk(ASK, answer), {"question": "12+30", "answer": answer["content"]}):
            if said == thinks:
                assert sft(row | {name: value}).unread == frozenset()
            else:
                assert f"turns thinking {'on' if said else 'off'}, and " in refusal(
                    row | {name: value}
                )
