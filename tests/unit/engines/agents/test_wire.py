"""The three wire formats: what requests say, what answers look like, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest

from engines.agents.gateway import openapi
from engines.agents.harness import files_of_problem
from engines.agents.wire.anthropic_messages import Messages
from engines.agents.wire.chat_completions import ChatCompletions
from engines.agents.wire.responses import Responses
from engines.agents.wire.wire_format import Answer, Refusal, Request, WireFormat
from engines.types import AssistantTurn, Message, Problem, ToolCall
from infra.errors import InputError

pytestmark = pytest.mark.unit

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": ["integer", "null"]}},
    "required": ["path"],
}
CALL = ToolCall("read", {"path": "a.py"})
SAID = Message("assistant", "I look.", "why", (CALL,))
ASKED = (
    Message("system", "be brief"),
    Message("user", "fix it"),
    SAID,
    Message("tool", "print(1)"),
    Message("user", "go on"),
)
CHAT = {
    "model": "gpt",
    "temperature": 0.3,
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user",
         "content": [{"type": "text", "text": "fix"}, {"type": "text", "text": " it"}]},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "why",
            "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "print(1)"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}],
}  # fmt: skip
MESSAGES = {
    "model": "claude",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "fix it"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "why", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "a.py"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c",
                 "content": [{"type": "text", "text": "print(1)"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ],
    "tools": [{"name": "read", "input_schema": SCHEMA}],
}  # fmt: skip
RESPONSES = {
    "model": "gpt",
    "instructions": "be brief",
    "max_output_tokens": 7,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "why"}]},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"path":"a.py"}'},
        {"type": "function_call_output", "call_id": "c", "output": "print(1)"},
        {"role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}],
}  # fmt: skip
FORMATS = [(ChatCompletions(), CHAT), (Messages(), MESSAGES), (Responses(), RESPONSES)]
NESTED = json.loads("[" * 300 + "]" * 300)
"""deeper than a record of it could be written"""
ANSWER = Answer(3, AssistantTurn("", "I look.", "why", (CALL, CALL)), False, 10, 5)


@pytest.mark.parametrize(("wire", "body"), FORMATS)
def test_one_conversation_in_every_format(wire: WireFormat, body: dict[str, Any]) -> None:
    request = wire.request(orjson.dumps(body))
    assert request.messages == ASKED
    (tool,) = request.tools
    assert tool.parameters == {"path": "string", "lines": "any"}
    assert tool.required == ("path",)
    assert tool.schema == {"name": "read", "description": "", "parameters": SCHEMA}
    assert not request.is_streamed
    assert len(request.asked) == 1


@pytest.mark.parametrize(
    ("wire", "body", "where"),
    [
        (ChatCompletions(), {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:"}}]}]}, r"messages\[0\]"),
        (Messages(), {"messages": [{"role": "user", "content": [
            {"type": "image", "source": {}}]}]}, r"messages\[0\]"),
        (Responses(), {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:"}]}]}, r"input\[0\]"),
    ],
)  # fmt: skip
def test_images_are_refused_by_name(wire: WireFormat, body: dict[str, Any], where: str) -> None:
    with pytest.raises(Refusal, match=where + ".*image.* is not supported: the policy reads text"):
        wire.request(orjson.dumps(body))


@pytest.mark.parametrize("wire", [wire for wire, _ in FORMATS])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"input": 3}', b"\xff"])
def test_malformed_bodies_are_refused(wire: WireFormat, body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        wire.request(body)
    assert caught.value.status == 400
    assert b"error" in wire.error(caught.value)


@pytest.mark.parametrize(
    ("wire", "change", "said"),
    [
        (ChatCompletions(), {"n": 2}, "n: 2 answers"),
        (ChatCompletions(), {"messages": [{"role": "critic", "content": ""}]}, "messages.0.role"),
        (Messages(), {"tools": [{"type": "web_search", "name": "w"}]}, "Anthropic's servers"),
        (Responses(), {"tools": [{"type": "web_search"}]}, "OpenAI's servers"),
        (Responses(), {"input": [{"type": "item_reference"}]}, "item_reference"),
        (ChatCompletions(), {"functions": [{"name": "f"}]}, "functions: .* send them as `tools`"),
        (ChatCompletions(), {"web_search_options": {"a": 1}}, "web_search_options: is not"),
        (ChatCompletions(), {"messages": [{"role": "assistant", "content": "",
            "function_call": {"name": "f", "arguments": "{}"}}]}, r"messages\[0\]: function_call"),
        (Messages(), {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers: is not supported"),
        (Responses(), {"conversation": "conv_1"}, "conversation: is not supported"),
        (Responses(), {"background": True}, "background: is not supported"),
        (ChatCompletions(), {"stop": NESTED}, "nested too deep"),
        (Messages(), {"thinking": NESTED}, "nested too deep"),
        (Responses(), {"text": NESTED}, "nested too deep"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(wire: Any, change: dict[str, Any], said: str) -> None:
    body = dict(next(body for known, body in FORMATS if type(known) is type(wire))) | change
    with pytest.raises(Refusal, match=said):
        wire.request(json.dumps(body).encode())


def test_what_is_asked_of_sampling_is_recorded_and_what_changes_nothing_is_not() -> None:
    more = {"chat_template_kwargs": {"enable_thinking": False}, "functions": [], "user": "me"}
    request = ChatCompletions().request(orjson.dumps(CHAT | more))
    assert request.asked == {"temperature": 0.3, "chat_template_kwargs": {"enable_thinking": False}}


CALLS = [("a", "read"), ("b", "list")]
TWO_CALLS: list[tuple[WireFormat, dict[str, Any]]] = [
    (ChatCompletions(), {"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [
            {"id": id, "function": {"name": name, "arguments": "{}"}} for id, name in CALLS]},
        {"role": "tool", "tool_call_id": "b", "content": "of b"},
        {"role": "tool", "tool_call_id": "a", "content": "of a"}]}),
    (Messages(), {"messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": id, "name": name, "input": {}} for id, name in CALLS]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "b", "content": "of b"},
            {"type": "tool_result", "tool_use_id": "a", "content": "of a"}]}]}),
    (Responses(), {"input": [
        {"role": "user", "content": "x"},
        *({"type": "function_call", "call_id": id, "name": name} for id, name in CALLS),
        {"type": "function_call_output", "call_id": "b", "output": "of b"},
        {"type": "function_call_output", "call_id": "a", "output": "of a"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "body"), TWO_CALLS)
def test_answers_of_tools_come_in_the_order_of_the_calls(
    wire: WireFormat, body: dict[str, Any]
) -> None:
    """Templates write no ids, so the policy would take one for the other."""
    said = wire.request(orjson.dumps(body)).messages
    assert [call.name for call in said[1].tool_calls] == ["read", "list"]
    assert [message.content for message in said[2:]] == ["of a", "of b"]


def test_a_program_is_given_a_problem_s_calls_and_thoughts_in_a_form_that_it_can_send_on() -> None:
    calls = (CALL, ToolCall("list", {"n": 2**70}))
    answers = (Message("tool", "of a"), Message("tool", "of b"))
    asked = (*ASKED, Message("assistant", "", "both", calls), *answers, Message("user", "and now?"))
    problem = Problem("p", "d", asked, metadata={"files": {"a.py": "print(1)"}})
    files = files_of_problem(problem)
    assert files["a.py"] == b"print(1)"
    body = {"messages": json.loads(files["problem.json"])["messages"]}
    assert ChatCompletions().request(json.dumps(body).encode()).messages == asked
    with pytest.raises(InputError, match=r"problem p: metadata\.files must map names to texts"):
        files_of_problem(replace(problem, metadata={"files": {"a.py": 1}}))


@pytest.mark.parametrize("form", ["blocks", "text"])
def test_a_line_for_the_provider_does_not_make_each_request_a_new_conversation(form: str) -> None:
    """Claude Code begins its system prompt with a line that is another one in each request."""

    def asked(number: str) -> tuple[Message, ...]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={number};"
        blocks = [{"type": "text", "text": text} for text in (line, "You are brief.", " Be kind.")]
        system = blocks if form == "blocks" else f"{line}\nYou are brief. Be kind."
        return Messages().request(orjson.dumps(MESSAGES | {"system": system})).messages

    assert asked("36ee5") == asked("0aaa9")
    assert asked("36ee5")[0] == Message("system", "You are brief. Be kind.")


@pytest.mark.parametrize("wire", [wire for wire, _ in FORMATS])
def test_a_stream_says_what_the_whole_answer_says(wire: WireFormat) -> None:
    events = b"".join(wire.events(ANSWER, Request(ASKED, wants_usage=True))).decode()
    whole = wire.reply(ANSWER).decode()
    for text in ("I look.", "why", "call_3_0", "call_3_1"):
        assert text in events
        assert text in whole


def test_functions_in_a_namespace_go_to_the_policy_and_back() -> None:
    """As Codex has them."""
    item = {"type": "function_call", "call_id": "c", "arguments": "{}", "name": "wait"}
    item |= {"namespace": "agents"}
    tool = {"type": "function", "name": "wait", "parameters": SCHEMA}
    body = {
        "input": [{"role": "user", "content": "x"}, item],
        "tools": [{"type": "namespace", "name": "agents", "tools": [tool]}],
    }
    request = Responses().request(orjson.dumps(body))
    called = ToolCall("agents.wait", {})
    assert request.messages[-1].tool_calls == (called,)
    assert [tool.name for tool in request.tools] == ["agents.wait"]
    answer = Answer(3, AssistantTurn("", "", None, (called, CALL)), False, 10, 5)
    said = orjson.loads(Responses().reply(answer))["output"]
    assert [(i["name"], i.get("namespace")) for i in said] == [("wait", "agents"), ("read", None)]


def test_the_openapi_document_has_every_path_and_model() -> None:
    found = openapi([wire for wire, _ in FORMATS], "/v1/messages/count_tokens")
    assert set(found["paths"]) == {
        "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    }  # fmt: skip
    assert {"ChatBody", "MessagesBody", "ResponsesBody"} <= set(found["components"]["schemas"])
