"""Anthropic's Messages."""

from __future__ import annotations

import re
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
    event,
    in_order,
    pieces,
    read,
    text_of,
    tool_of,
)
from engines.agents.wire.wire_format import MODEL, Answer, Refusal, Request
from engines.types import Json, Message, Tool, ToolCall
from infra.json_text import json_bytes

_ASKED = (
    "temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "tool_choice", "thinking",
    "output_config", "output_format", "context_management",
)  # fmt: skip
_REFUSED = {"mcp_servers": "have the client ask them itself, and send their tools as `tools`"}
_BILLING = re.compile(r"x-anthropic-billing-header:.*\n?")
"""Claude Code writes it for Anthropic's servers before its system prompt, another one in each
request: with it no conversation would continue the one before"""
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Block(Part):
    """A piece of content: text, a thought, a call, or what a tool answered."""

    thinking: str | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    content: str | list[Part] | None = None


class MessagesMessage(WireModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessagesTool(WireModel):
    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessagesBody(Body):
    """A request; of its sampling parameters none is followed."""

    model: str = MODEL
    messages: list[MessagesMessage] = Field(min_length=1)
    system: str | list[Part] | None = None
    tools: list[MessagesTool] | None = None
    stream: bool | None = None


class Messages:
    """`/v1/messages`; `/v1/messages/count_tokens` reads the same body."""

    path = "/v1/messages"
    keeps_answers = False
    body = MessagesBody

    def request(self, body: bytes) -> Request:
        said = read(MessagesBody, body, _REFUSED)
        messages: list[Said] = []
        if system := _system(said.system):
            messages.append((Message("system", system), ()))
        for at, message in enumerate(said.messages):
            messages += _messages(message, f"messages[{at}]")
        return Request(
            messages=in_order(messages),
            tools=tuple(_tool(tool) for tool in said.tools or ()),
            is_streamed=bool(said.stream),
            asked=asked_of(said, _ASKED),
        )

    def answer_id(self, answer: Answer) -> str:
        return f"msg_{answer.number}"

    def reply(self, answer: Answer) -> bytes:
        message = self._message(answer, _blocks(answer))
        message |= {"stop_reason": _stop(answer), "usage": _usage(answer, answer.new_tokens)}
        return json_bytes(message)

    def events(self, answer: Answer, request: Request) -> Iterator[bytes]:
        def named(kind: str, **data: Any) -> bytes:
            return event({"type": kind, **data}, kind)

        yield named("message_start", message=self._message(answer, []))
        for at, block in enumerate(_blocks(answer)):
            empty, deltas = _streamed(block)
            yield named("content_block_start", index=at, content_block=empty)
            for delta in deltas:
                yield named("content_block_delta", index=at, delta=delta)
            yield named("content_block_stop", index=at)
        stop = {"stop_reason": _stop(answer), "stop_sequence": None}
        yield named("message_delta", delta=stop, usage=_usage(answer, answer.new_tokens))
        yield named("message_stop")

    def error(self, refusal: Refusal) -> bytes:
        return json_bytes(_error(refusal))

    def error_event(self, refusal: Refusal) -> bytes:
        return event(_error(refusal), "error")

    def sign_of_life(self) -> bytes:
        return event({"type": "ping"}, "ping")

    def _message(self, answer: Answer, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer_id(answer),
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(answer, 0),
        }


def _error(refusal: Refusal) -> dict[str, Json]:
    kind = _ERRORS.get(refusal.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


def _system(content: str | list[Part] | None) -> str:
    parts = [Part(text=content)] if isinstance(content, str) else content or []
    first = next((part for part in parts if part.text), None)
    if first is not None and (billing := _BILLING.match(first.text or "")):
        first.text = (first.text or "")[billing.end() :]
    return text_of(parts, "system")


def _messages(message: MessagesMessage, where: str) -> list[Said]:
    """A message of the user holds what tools answered, and what the user says after it."""
    blocks = message.content
    if isinstance(blocks, str):
        return [(Message(message.role, blocks), ())]
    if message.role == "assistant":
        return [_assistant(blocks, where)]
    results = [block for block in blocks if block.type == "tool_result"]
    rest = [block for block in blocks if block.type != "tool_result"]
    found: list[Said] = [
        (Message("tool", text_of(block.content, where)), [block.tool_use_id]) for block in results
    ]
    if rest or not results:
        found.append((Message(message.role, text_of(rest, where)), ()))
    return found


def _assistant(blocks: list[Block], where: str) -> Said:
    texts = [b for b in blocks if b.type not in ("tool_use", "thinking", "redacted_thinking")]
    thoughts = [block.thinking or "" for block in blocks if block.type == "thinking"]
    used = [block for block in blocks if block.type == "tool_use"]
    calls = tuple(ToolCall(block.name, block.input) for block in used)
    thought = "".join(thoughts) if thoughts else None
    said = Message("assistant", text_of(texts, where), thought, calls)
    return said, [block.id for block in used]


def _tool(tool: MessagesTool) -> Tool:
    if tool.type not in (None, "custom"):
        raise Refusal(
            400,
            f"tools: {tool.name!r} is of type {tool.type!r}, a tool of Anthropic's servers. Leave"
            " it out; tools that the client runs itself are supported",
        )
    return tool_of(tool.name, tool.description, tool.input_schema)


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    said = answer.said
    found: list[dict[str, Any]] = []
    if said.reasoning:
        found.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
    if said.content or not said.tool_calls:
        found.append({"type": "text", "text": said.content})
    for at, call in enumerate(said.tool_calls):
        used = {"id": answer.call_id(at), "name": call.name, "input": call.arguments}
        found.append({"type": "tool_use", **used})
    return found


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return a block as it begins, and what fills it."""
    if block["type"] == "tool_use":
        text = arguments_text(ToolCall(block["name"], block["input"]))
        deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(text))
        return block | {"input": {}}, deltas
    name = block["type"]
    kind = "text_delta" if name == "text" else "thinking_delta"
    deltas = ({"type": kind, name: piece} for piece in pieces(block[name]))
    return block | {name: ""}, deltas


def _stop(answer: Answer) -> str:
    if answer.is_cut_off:
        return "max_tokens"
    return "tool_use" if answer.said.tool_calls else "end_turn"


def _usage(answer: Answer, new_tokens: int) -> dict[str, int]:
    return {"input_tokens": answer.prompt_tokens, "output_tokens": new_tokens}
