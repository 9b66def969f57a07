"""Problems and turns as JSON text, for columns that a person can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engines.types import Message, Problem, Tool, ToolCall


def dump_turns(turns: Sequence[Message]) -> str:
    return _dumps([_message(m) for m in turns])


def load_turns(text: str) -> tuple[Message, ...]:
    return tuple(_to_message(m) for m in json.loads(text))


def dump_problem(problem: Problem) -> str:
    return _dumps(
        {
            "id": problem.id,
            "domain": problem.domain,
            "messages": [_message(m) for m in problem.messages],
            "reference": problem.reference,
            "tools": [_tool(t) for t in problem.tools],
            "thinking": problem.thinking,
            "metadata": dict(problem.metadata),
        }
    )


def load_problem(text: str) -> Problem:
    raw = json.loads(text)
    return Problem(
        id=raw["id"],
        domain=raw["domain"],
        messages=tuple(_to_message(m) for m in raw["messages"]),
        reference=raw["reference"],
        tools=tuple(
            Tool(
                t["name"], t["description"], t["parameters"], tuple(t["required"]), t.get("schema")
            )
            for t in raw["tools"]
        ),
        thinking=raw["thinking"],
        metadata=raw["metadata"],
    )


def _dumps(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a user's text holds half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text


def _message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls],
    }


def _to_message(raw: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(c["name"], c["arguments"]) for c in raw["tool_calls"])
    return Message(raw["role"], raw["content"], raw["reasoning"], calls)


def _tool(tool: Tool) -> dict[str, Any]:
    said = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "required": list(tool.required),
    }
    return said if tool.schema is None else said | {"schema": tool.schema}
