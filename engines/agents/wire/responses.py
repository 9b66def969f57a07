"""OpenAI's Responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from engines.agents.wire.chat_completions import openai_error
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
from engines.types import Message, Tool, ToolCall
from infra.json_text import json_bytes

_ASKED = (
    "temperature", "top_p", "max_output_tokens", "tool_choice", "parallel_tool_calls", "reasoning",
    "text", "top_logprobs", "max_tool_calls", "truncation",
)  # fmt: skip
_REFUSED = {
    "conversation": "send its items as `input`, or `previous_response_id`",
    "prompt": "send what it says as `instructions` and `input`",
    "background": "leave it out, and wait for the answer",
}


class Item(WireModel):
    """A part of the input: a message, a call, what a function answered, or a thought."""

    type: str = "message"
    role: str = ""
    content: str | list[Part] | None = None
    name: str = ""
    namespace: str | None = None
    call_id: str | None = None
    arguments: str = "{}"
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


class ResponsesTool(WireModel):
    """A function, or a namespace of functions, as Codex has them."""

    type: str = "function"
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ResponsesTool] | None = None


class ResponsesBody(Body):
    """A request; of its sampling parameters none is followed."""

    model: str = MODEL
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ResponsesTool] | None = None
    stream: bool | None = None


class Responses:
    """`/v1/responses`."""

    path = "/v1/responses"
    keeps_answers = True
    body = ResponsesBody

    def request(self, body: bytes) -> Request:
        said = read(ResponsesBody, body, _REFUSED)
        items = (
            [Item(role="user", content=said.input)] if isinstance(said.input, str) else said.input
        )
        first = [Message("system", said.instructions)] if said.instructions else []
        return Request(
            messages=(*first, *in_order(_messages(items))),
            tools=tuple(_functions(said.tools or ())),
            is_streamed=bool(said.stream),
            asked=asked_of(said, _ASKED),
            previous=said.previous_response_id or "",
        )

    def answer_id(self, answer: Answer) -> str:
        return f"resp_{answer.number}"

    def reply(self, answer: Answer) -> bytes:
        return json_bytes(self._response(answer, "completed"))

    def events(self, answer: Answer, request: Request) -> Iterator[bytes]:
        numbers = count()

        def named(kind: str, **data: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers), **data}, kind)

        begun = self._response(answer, "in_progress")
        yield named("response.created", response=begun)
        yield named("response.in_progress", response=begun)
        for at, item in enumerate(_output(answer)):
            place = {"output_index": at, "item_id": item["id"]}
            empty = item | _EMPTY.get(item["type"], {}) | {"status": "in_progress"}
            yield named("response.output_item.added", output_index=at, item=empty)
            for kind, data in _item_events(item):
                yield named(kind, **place, **data)
            yield named("response.output_item.done", output_index=at, item=item)
        done = self._response(answer, "completed")
        last = "response.incomplete" if answer.is_cut_off else "response.completed"
        yield named(last, response=done)

    def error(self, refusal: Refusal) -> bytes:
        return json_bytes({"error": openai_error(refusal)})

    def error_event(self, refusal: Refusal) -> bytes:
        said = {"type": "error", "code": refusal.code, "message": refusal.message, "param": None}
        return event({**said, "sequence_number": 0}, "error")

    def sign_of_life(self) -> bytes:
        return b": waiting for the policy\n\n"

    def _response(self, answer: Answer, status: str) -> dict[str, Any]:
        is_done = status == "completed"
        cut = is_done and answer.is_cut_off
        return {
            "id": self.answer_id(answer),
            "object": "response",
            "created_at": int(time.time()),
            "status": "incomplete" if cut else status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": None,
            "metadata": {},
            "model": MODEL,
            "output": _output(answer) if is_done else [],
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": _usage(answer) if is_done else None,
        }


_EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}


def _messages(items: Sequence[Item]) -> list[Said]:
    """A turn of the assistant is several items: its thought, its text, its calls."""
    messages: list[Said] = []
    turn = _OpenTurn()
    for at, item in enumerate(items):
        where = f"input[{at}]"
        match item.type:
            case "reasoning":
                messages += turn.end() if turn.has_spoken else []
                turn.thought = text_of(item.summary, where)
            case "message" if item.role == "assistant":
                messages += turn.end() if turn.has_spoken else []
                turn.text = text_of(item.content, where)
            case "function_call":
                turn.ids.append(item.call_id)
                turn.calls.append(
                    call_of(_joined(item.namespace, item.name), item.arguments, where)
                )
            case "function_call_output":
                answer = Message("tool", text_of(item.output, where))
                messages += [*turn.end(), (answer, [item.call_id])]
            case "message" if item.role in ("system", "developer"):
                messages += [*turn.end(), (Message("system", text_of(item.content, where)), ())]
            case "message" if item.role == "user":
                messages += [*turn.end(), (Message("user", text_of(item.content, where)), ())]
            case _:
                raise Refusal(400, f"{where}: an item of type {item.type!r} is not supported")
    return [*messages, *turn.end()]


class _OpenTurn:
    """A turn whose items are still coming."""

    def __init__(self) -> None:
        self.thought: str | None = None
        self.text: str | None = None
        self.calls: list[ToolCall] = []
        self.ids: list[str | None] = []

    @property
    def has_spoken(self) -> bool:
        return self.text is not None or bool(self.calls)

    def end(self) -> list[Said]:
        """The turn, if there is one; the next one may begin."""
        if not self.has_spoken:
            self.thought = None
            return []
        said = Message("assistant", self.text or "", self.thought, tuple(self.calls))
        ids, self.ids = self.ids, []
        self.thought, self.text, self.calls = None, None, []
        return [(said, ids)]


def _functions(tools: Sequence[ResponsesTool], namespace: str = "") -> Iterator[Tool]:
    for tool in tools:
        if tool.type == "namespace" and not namespace:
            yield from _functions(tool.tools or (), tool.name)
            continue
        if tool.type != "function":
            raise Refusal(
                400,
                f"tools: {tool.type!r} is a tool of OpenAI's servers. Leave it out; functions that"
                " the client runs itself are supported, also in a namespace",
            )
        yield tool_of(_joined(namespace, tool.name), tool.description, tool.parameters)


def _joined(namespace: str | None, name: str) -> str:
    """Return a function's name as the policy sees it. Names have no dots of their own in this
    format."""
    return f"{namespace}.{name}" if namespace else name


def _output(answer: Answer) -> list[dict[str, Any]]:
    said, number = answer.said, answer.number
    found: list[dict[str, Any]] = []
    if said.reasoning:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        found.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if said.content or not said.tool_calls:
        text = {"type": "output_text", "text": said.content, "annotations": []}
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
        found.append({**item, "status": "completed", "content": [text]})
    for at, call in enumerate(said.tool_calls):
        item = {"type": "function_call", "id": f"fc_{number}_{at}", "call_id": answer.call_id(at)}
        namespace, _, name = call.name.rpartition(".")
        item |= {"namespace": namespace} if namespace else {}
        arguments = arguments_text(call)
        found.append({**item, "name": name, "arguments": arguments, "status": "completed"})
    return found


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what fills an item that was added."""
    if item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {"delta": piece}
        named = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", named
    elif item["type"] == "message":
        (part,) = item["content"]
        place = {"content_index": 0}
        yield "response.content_part.added", {**place, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**place, "part": part}
    else:
        (part,) = item["summary"]
        place = {"summary_index": 0}
        yield "response.reasoning_summary_part.added", {**place, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**place, "delta": piece}
        yield "response.reasoning_summary_text.done", {**place, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**place, "part": part}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.new_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.new_tokens,
    }
