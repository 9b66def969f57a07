"""A row as a conversation, and what both layouts have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from engines.types import Message, Tool, ToolCall
from infra.data_files.bad_row import BadRow, Reason
from infra.data_files.rows import without_nulls
from infra.json_text import parse_json


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one row says."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    weight: float = 1.0
    """factor of its loss"""
    untrained: frozenset[int] = frozenset()
    """places of the assistant's messages that are only read"""


def text_of(content: Any, where: str) -> str:
    """A message's text: a string, parts of text, or none. Raises BadRow."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part, where) for part in cast("list[Any]", content))
    raise BadRow(Reason.MESSAGES, f"{where}: its content is no text but {_kind(content)}")


def _part(part: Any, where: str) -> str:
    if isinstance(part, Mapping):
        part = cast("Mapping[str, Any]", part)
        if part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            return part["text"]
        raise BadRow(Reason.MESSAGES, f"{where}: a part of type {part.get('type')!r} is no text")
    return text_of(part, where)


def tools_of(value: Any) -> tuple[Tool, ...]:
    """A list of functions in OpenAI's form, or the same as JSON text. Raises BadRow."""
    value = _parsed(value, "tools") if isinstance(value, str) else without_nulls(value)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRow(Reason.TOOLS, f"tools: is no list but {_kind(value)}")
    return tuple(_tool(each, f"tools[{at}]") for at, each in enumerate(cast("list[Any]", value)))


def _tool(value: Any, where: str) -> Tool:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow(Reason.TOOLS, f"{where}: is no function with a name")
    function = cast("dict[str, Any]", function)
    if isinstance(function.get("parameters"), str):
        function = function | {"parameters": _parsed(function["parameters"], where)}
    return Tool(function["name"], str(function.get("description", "")), {}, schema=function)


def calls_of(value: Any, where: str) -> tuple[ToolCall, ...]:
    """Calls as `{function: {name, arguments}}` or `{name, arguments}`. Raises BadRow."""
    value = _parsed(value, where)
    calls: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_call(call, where) for call in calls)


def _call(value: Any, where: str) -> ToolCall:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow(Reason.TOOLS, f"{where}: a tool call lacks its name")
    arguments = _parsed(function.get("arguments"), where)
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise BadRow(Reason.TOOLS, f"{where}: arguments of {function['name']} are no JSON object")
    return ToolCall(function["name"], arguments)


def _parsed(value: Any, where: str) -> Any:
    """JSON text read; anything else as it is."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except ValueError as error:
        raise BadRow(Reason.TOOLS, f"{where}: is not JSON: {error}") from None


def fault_of_order(messages: Sequence[Message]) -> str:
    """What keeps messages from being a conversation that can be learned; empty for none."""
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        return "the assistant says nothing"
    if roles[0] == "assistant":
        return "the assistant speaks first; there is nothing that it answers"
    if roles[-1] != "assistant":
        return f"the last message is not the assistant's but of role {roles[-1]}"
    for at, role in enumerate(roles):
        if role == "assistant" and roles[at - 1] == "assistant":
            return f"messages[{at - 1}] and messages[{at}] are both the assistant's"
        if role == "system" and at > 0:
            return f"messages[{at}]: a system message comes first or not at all"
        if role == "tool" and not (roles[at - 1] == "tool" or messages[at - 1].tool_calls):
            return f"messages[{at}]: a tool answers, but was not called"
    return ""


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", bool: "a truth value"}.get(type(value), "a number")
