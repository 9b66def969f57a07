"""OpenAI's Chat Completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from engines.agents.wire.content_parts import (
    Body,
    Part,
    Said,
    WireModel,
    arguments_text,
    asked_of,
    call_of,
    event,
    in_order,
    pieces,
    read,
    text_of,
    tool_of,
)
from engines.agents.wire.wire_format import MODEL, Answer, Refusal, Request
from engines.types import Json, Message, Tool
from infra.json_text import json_bytes

_ASKED = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "min_tokens",
    "stop", "stop_token_ids", "ignore_eos", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format",
    "tool_choice", "parallel_tool_calls", "reasoning_effort", "thinking", "enable_thinking",
    "chat_template_kwargs", "verbosity",
)  # fmt: skip
_REFUSED = {
    "functions": "send them as `tools`",
    "audio": "the policy writes text only; leave it out",
    "web_search_options": "leave it out; tools that the client runs itself are supported",
}


class Function(WireModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(WireModel):
    type: Literal["function"] = "function"
    function: Function


class CalledFunction(WireModel):
    name: str
    arguments: str = "{}"


class Call(WireModel):
    id: str | None = None
    function: CalledFunction


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Any = None


class StreamOptions(WireModel):
    include_usage: bool = False


class ChatBody(Body):
    """A request; of its sampling parameters none is followed."""

    model: str = MODEL
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None


class ChatCompletions:
    """`/v1/chat/completions`."""

    path = "/v1/chat/completions"
    keeps_answers = False
    body = ChatBody

    def request(self, body: bytes) -> Request:
        said = read(ChatBody, body, _REFUSED)
        if said.n not in (None, 1):
            raise Refusal(400, f"n: {said.n} answers at once are not given; ask {said.n} times")
        return Request(
            messages=in_order(_said_in(m, f"messages[{at}]") for at, m in enumerate(said.messages)),
            tools=tuple(_tool(tool) for tool in said.tools or ()),
            is_streamed=bool(said.stream),
            asked=asked_of(said, _ASKED),
            wants_usage=said.stream_options is not None and said.stream_options.include_usage,
        )

    def answer_id(self, answer: Answer) -> str:
        return f"chatcmpl-{answer.number}"

    def reply(self, answer: Answer) -> bytes:
        choice = {"index": 0, "message": _said(answer), "logprobs": None}
        return json_bytes(
            {
                **self._head(answer, "chat.completion"),
                "choices": [choice | {"finish_reason": _finish(answer)}],
                "usage": _usage(answer),
            }
        )

    def events(self, answer: Answer, request: Request) -> Iterator[bytes]:
        head = self._head(answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            return event({**head, "choices": [_choice(delta, finish)]})

        said = answer.said
        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces(said.reasoning or ""):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(said.content):
            yield chunk({"content": piece})
        for at, call in enumerate(said.tool_calls):
            opened = {"index": at, "id": answer.call_id(at), "type": "function"}
            function = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [{**opened, "function": function}]})
            for piece in pieces(arguments_text(call)):
                yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
        yield chunk({}, _finish(answer))
        if request.wants_usage:
            yield event({**head, "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def error(self, refusal: Refusal) -> bytes:
        return json_bytes({"error": openai_error(refusal)})

    def error_event(self, refusal: Refusal) -> bytes:
        return event({"error": openai_error(refusal)})

    def sign_of_life(self) -> bytes:
        return b": waiting for the policy\n\n"

    def _head(self, answer: Answer, kind: str) -> dict[str, Any]:
        created = int(time.time())
        return {"id": self.answer_id(answer), "object": kind, "created": created, "model": MODEL}


def openai_error(refusal: Refusal) -> dict[str, Json]:
    """Write the error as OpenAI's API says it."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}


def _said_in(message: ChatMessage, where: str) -> Said:
    if message.function_call:
        raise Refusal(400, f"{where}: function_call is not supported; send it as `tool_calls`")
    role = "system" if message.role == "developer" else message.role
    called = message.tool_calls or ()
    calls = tuple(call_of(c.function.name, c.function.arguments, where) for c in called)
    text = text_of(message.content, where)
    ids = [message.tool_call_id] if role == "tool" else [call.id for call in called]
    return Message(role, text, message.reasoning_content, calls), ids


def _tool(tool: ChatTool) -> Tool:
    function = tool.function
    return tool_of(function.name, function.description, function.parameters)


def _said(answer: Answer) -> dict[str, Any]:
    said = answer.said
    message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.tool_calls:
        message["content"] = said.content or None
        message["tool_calls"] = [
            {
                "id": answer.call_id(at),
                "type": "function",
                "function": {"name": call.name, "arguments": arguments_text(call)},
            }
            for at, call in enumerate(said.tool_calls)
        ]
    return message


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _finish(answer: Answer) -> str:
    if answer.is_cut_off:
        return "length"
    return "tool_calls" if answer.said.tool_calls else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.new_tokens
    counts = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.new_tokens}
    return {**counts, "total_tokens": total}
