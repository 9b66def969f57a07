"""Rows of a user's files: what each layout says, what is refused, which tokens are trained."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from curricula.rows.conversation import Conversation
from curricula.rows.layouts import read_row
from engines.chat import Chat
from engines.rollout.records.packing import dump_problem, load_problem
from engines.types import Json, Message, Problem, Tool, ToolCall
from infra.data_files.rows import BadRow, Reason
from tasks.message_files.render_rows import Renderer, WithoutThoughts
from tasks.message_files.spec import MessageFiles
from tasks.preference.row_faults import fault_beside
from tests.parts.chat_parts import LLAMA, LLAMA_TOKENS, QWEN3, QWEN_TOKENS, chat_folder

pytestmark = pytest.mark.unit

ASK = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Yo"}
LOOK: dict[str, Json] = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
CALL = {"function": {"name": "look", "arguments": '{"at": "ant"}'}}


def read(row: dict[str, Any], **source: Any) -> Conversation:
    files = MessageFiles.model_validate({"files": ["x.jsonl"], **source})
    return read_row(row, files.columns, files.format)


def openai(*messages: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"messages": list(messages), **columns}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = chat_folder(tmp_path_factory.mktemp("qwen"), QWEN3, QWEN_TOKENS, "<|im_end|>")
    return Renderer(Chat.load(folder), 512)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = chat_folder(tmp_path_factory.mktemp("llama"), LLAMA, LLAMA_TOKENS, "<|eot|>")
    return Renderer(Chat.load(folder), 64)


def test_openais_layout_is_read_with_tools_calls_and_thoughts():
    system = {"role": "developer", "content": [{"type": "text", "text": "Be"}, " brief"]}
    called = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]}
    found = {"role": "tool", "content": "red", "tool_call_id": "1"}
    row = openai(system, ASK, called, found, ANSWER, tools=[{"type": "function", "function": LOOK}])
    assert read(row) == Conversation(
        (
            Message("system", "Be brief"),
            Message("user", "Hi"),
            Message("assistant", "", "hm", (ToolCall("look", {"at": "ant"}),)),
            Message("tool", "red"),
            Message("assistant", "Yo"),
        ),
        (Tool("look", "Looks.", {}, schema=LOOK),),
    )


def test_a_reward_model_learns_a_row_as_it_is_asked(qwen: Renderer):
    row = read(openai(ASK, ANSWER | {"reasoning": "hm"}))
    bare = WithoutThoughts(qwen.chat, qwen.max_tokens).render(row)
    asked = Problem("p", "d", (Message("user", "Hi"),))
    assert (bare.tokens, bare.loss_mask) == qwen.chat.training_ids(
        asked, [Message("assistant", "Yo")]
    )
    thought = qwen.render(row)
    assert "hm" in qwen.chat.decode(thought.tokens)
    assert fault_beside("ab", [bare, thought]).startswith("a and b follow different prompts")
    assert fault_beside("ab", [bare, bare]).startswith("a and b are equal")
    row = read(openai(ASK, ANSWER | {"content": "<think>hm</think>"}))
    with pytest.raises(BadRow, match="its last turn is a thought alone, without an answer"):
        WithoutThoughts(qwen.chat, qwen.max_tokens).render(row)


def test_sharegpts_layout_is_read_with_a_system_column_and_calls():
    row = {
        "system": "Be brief",
        "tools": json.dumps([LOOK]),
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": json.dumps(CALL["function"])},
            {"from": "observation", "value": "red"},
            {"from": "gpt", "value": "Yo"},
        ],
    }
    read_as = read(row)
    assert [message.role for message in read_as.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert read_as.messages[2].tool_calls == (ToolCall("look", {"at": "ant"}),)
    assert read_as.tools[0].schema == LOOK


def test_columns_of_other_names_are_mapped():
    row = {"chat": [ASK, ANSWER], "rules": "Be brief", "how_good": 2}
    columns = {"messages": "chat", "system": "rules", "weight": "how_good"}
    found = read(row, columns=columns)
    assert [message.content for message in found.messages] == ["Be brief", "Hi", "Yo"]
    assert found.weight == 2.0
    with pytest.raises(BadRow, match="has no column how_good; it has chat"):
        read({"chat": [ASK, ANSWER], "rules": ""}, columns=columns)


@pytest.mark.parametrize(
    ("row", "reason", "text"),
    [
        ({"text": "Hi"}, Reason.COLUMNS, "has no column messages; it has text"),
        ({"messages": "Hi"}, Reason.COLUMNS, "is no list of messages"),
        ({"messages": "[{'role': 'user'}]"}, Reason.COLUMNS, "a list as Python prints it"),
        (
            openai(ASK, ANSWER | {"tool_calls": '[{"name": "a", "name": "b"}]'}),
            Reason.TOOLS,
            "the key 'name' stands twice",
        ),
        (openai(), Reason.COLUMNS, "is no list of messages"),
        ({"messages": ["Hi"]}, Reason.MESSAGES, r"messages\[0\]: is no object"),
        (openai({"role": "bot", "content": "x"}), Reason.MESSAGES, "the role is 'bot'; allowed:"),
        (openai(ASK), Reason.MESSAGES, "the assistant says nothing"),
        (openai(ANSWER), Reason.MESSAGES, "the assistant speaks first"),
        (openai(ASK, ANSWER, ASK), Reason.MESSAGES, "last message is not the assistant's"),
        (openai(ASK, ANSWER, ANSWER), Reason.MESSAGES, "are both the assistant's"),
        (
            openai({"role": "user", "content": [{"type": "image_url"}]}, ANSWER),
            Reason.MESSAGES,
            "a part of type 'image_url' is no text",
        ),
        (openai(ASK, ANSWER | {"refusal": "No"}), Reason.MESSAGES, "has `refusal`"),
        (openai(ASK, ANSWER | {"weight": 0.5}), Reason.MESSAGES, "allowed: 0 and 1"),
        (openai(ASK, ANSWER | {"content": 4}), Reason.MESSAGES, "no text but a number"),
        (openai(ASK, ANSWER, tools=[{"type": "function"}]), Reason.TOOLS, "no function with a"),
        (openai(ASK, ANSWER | {"tool_calls": "{"}), Reason.TOOLS, "is not JSON"),
        (
            openai(ASK, {"role": "tool", "content": "x"}, ANSWER),
            Reason.MESSAGES,
            "a tool answers, but was not called",
        ),
    ],
)
def test_a_bad_row_says_why(row: dict[str, Any], reason: Reason, text: str):
    with pytest.raises(BadRow, match=text) as caught:
        read(row)
    assert caught.value.reason is reason


def call(name: str, arguments: Any) -> dict[str, Any]:
    called = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"function": called}]}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": None}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_nulls_that_a_table_filled_in_are_no_arguments_and_no_parameters():
    text, maybe = {"type": "string"}, {"type": ["string", "null"]}
    tools = [tool("look", at=text, a=None), tool("add", a={"type": "integer"}, b=maybe, at=None)]
    result = {"role": "tool", "content": "r"}
    said = [
        call("look", {"at": "x", "a": None, "b": None}),
        call("add", {"at": None, "a": 1, "b": None}),
        call("look", '{"at": "x", "a": null}'),
    ]
    messages = [message for each in said for message in (each, result)]
    found = read(openai(ASK, *messages, ANSWER, tools=tools))
    assert [m.tool_calls[0].arguments for m in found.messages if m.tool_calls] == [
        {"at": "x"},
        {"a": 1, "b": None},
        {"at": "x", "a": None},
    ]
    schemas = [json.loads(json.dumps(tool.schema)) for tool in found.tools]
    assert [each["parameters"] for each in schemas] == [
        {"type": "object", "properties": {"at": text}},
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": maybe}},
    ]


def test_messages_and_tools_may_be_json_text():
    plain = openai(ASK, ANSWER, tools=[tool("look", at={"type": "string"})])
    written = {name: json.dumps(value) for name, value in plain.items()}
    assert read(written).messages == read(plain).messages
    assert [each.name for each in read(written).tools] == ["look"]


@pytest.mark.parametrize("arguments", ["0", "false", "[]", 0, []])
def test_arguments_are_an_object(arguments: Any):
    result = {"role": "tool", "content": "r"}
    with pytest.raises(BadRow, match="arguments of look are no JSON object"):
        read(openai(ASK, call("look", arguments), result, ANSWER))


def test_the_mask_is_one_exactly_where_the_assistant_wrote(llama: Renderer):
    # <|begin|> <|start|> user <|end|> \n\n Hi <|eot|> <|start|> assistant <|end|> \n\n = 1 + 1 + 4
    # + 1 + 2 + 2 + 1 + 1 + 9 + 1 + 2 tokens that are only read, then Yo <|eot|>: every other
    # character is a token.
    rendered = llama.render(read(openai(ASK, ANSWER)))
    assert rendered.loss_mask == [0] * 25 + [1] * 3
    assert llama.chat.decode(rendered.tokens) == (
        "<|begin|><|start|>user<|end|>\n\nHi<|eot|><|start|>assistant<|end|>\n\nYo<|eot|>"
    )
    # The second answer's header is read again: Hi's turn is 11 tokens, the header 13.
    twice = llama.render(read(openai(ASK, ANSWER, ASK, ANSWER)))
    assert twice.loss_mask == [0] * 25 + [1] * 3 + [0] * 24 + [1] * 3
    first_only_read = llama.render(read(openai(ASK, ANSWER | {"weight": 0}, ASK, ANSWER)))
    assert first_only_read.tokens == twice.tokens
    assert first_only_read.loss_mask == [0] * 52 + [1] * 3


def test_a_thought_is_trained_wherever_the_row_has_it(qwen: Renderer):
    field = read(openai(ASK, ANSWER | {"reasoning_content": "hm"}))
    in_text = read(openai(ASK, ANSWER | {"content": "<think>\nhm\n</think>\n\nYo"}))
    rendered = qwen.render(field)
    assert rendered == qwen.render(in_text)
    said = [t for t, m in zip(rendered.tokens, rendered.loss_mask, strict=True) if m]
    assert qwen.chat.decode(said) == "<think>\nhm\n</think>\n\nYo<|im_end|>"
    with pytest.raises(BadRow, match="<think> is not closed"):
        qwen.render(read(openai(ASK, ANSWER | {"content": "<think>hm"})))


@pytest.mark.parametrize(
    "tag",
    [
        *("<thinking>", "<Reasoning>", "[THINK]", "<|begin_of_thought|>", "<scratch_pad>"),
        *("<seed:think>", "◁think▷", "<|START_THINKING|>"),
    ],
)
def test_a_thought_in_other_tags_is_no_answer_where_the_template_has_its_own(
    tag: str, qwen: Renderer, llama: Renderer
):
    said = read(openai(ASK, ANSWER | {"content": f"{tag}hm</..>Yo"}))
    with pytest.raises(BadRow, match=f"begins with {re.escape(tag)}, but the template writes"):
        qwen.render(said)
    assert llama.render(said)


def test_tools_reach_the_template_as_they_are_written(qwen: Renderer, llama: Renderer):
    row = openai(ASK, ANSWER, tools=[LOOK])
    text = qwen.chat.decode(qwen.render(read(row)).tokens)
    assert json.dumps({"type": "function", "function": LOOK}) in text
    with pytest.raises(BadRow, match="lists no tools") as caught:
        llama.render(read(row))
    assert caught.value.reason is Reason.TOOLS


def test_a_problem_on_record_keeps_what_its_tools_said_of_themselves():
    asked = Problem(
        "p/1", "d", (Message("user", "Hi"),), tools=read(openai(ASK, ANSWER, tools=[LOOK])).tools
    )
    assert load_problem(dump_problem(asked)) == asked


def test_what_is_too_long_or_teaches_nothing_is_bad(llama: Renderer):
    with pytest.raises(BadRow, match="has 126 tokens; the model's context holds 64") as caught:
        llama.render(read(openai(ASK | {"content": "x" * 100}, ANSWER)))
    assert caught.value.reason is Reason.TOO_LONG
    with pytest.raises(BadRow) as caught:
        llama.render(read(openai(ASK, ANSWER | {"weight": 0})))
    assert caught.value.reason is Reason.NOTHING_TRAINED


def test_a_template_that_drops_earlier_thoughts_is_named_and_not_trained(qwen: Renderer):
    row = openai(ASK, ANSWER | {"reasoning": "hm"}, ASK, ANSWER | {"reasoning": "so"})
    with pytest.raises(BadRow, match="does not keep the prefix") as caught:
        qwen.render(read(row))
    assert caught.value.reason is Reason.TEMPLATE
