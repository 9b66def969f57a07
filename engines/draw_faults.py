"""What keeps a value from being a problem or a demonstration, in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engines.types import Demonstration, Message, Problem, Tool, ToolCall
from infra.json_schema import kind_of_others

_ROLES = ("system", "user", "assistant", "tool")
_JSON_TYPES = ("string", "number", "integer", "boolean", "array", "object")


def problem_fault(problem: Problem) -> str:
    """What a person put into its fields that cannot be there; empty if it is fine."""
    written: Any = problem  # fields may hold anything that a person put there
    if not isinstance(written.id, str) or not written.id:
        return f"a problem with the id {written.id!r}; it must be a text that is not empty"
    name = f"problem {written.id}"
    if fault := _messages_fault(written.messages):
        return f"{name}: `messages` {fault}"
    if not isinstance(written.tools, tuple) or not all(isinstance(t, Tool) for t in written.tools):
        return f"{name}: `tools` must be a tuple of engines.types.Tool"
    for tool in written.tools:
        if fault := _tool_fault(tool):
            return f"{name}: tool {tool.name} {fault}"
    for field, value in (("reference", written.reference), ("metadata", dict(written.metadata))):
        if fault := json_fault(value):
            return f"{name}: its {field} {fault}"
    return ""


def json_fault(value: object) -> str:
    """Why the value would not be the same after a trip through JSON; empty if it would."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"is no JSON: {error}"
    if json.loads(text) != value:
        return (
            "changes when it is written as JSON: use lists instead of tuples, and strings as keys"
        )
    return ""


def demonstration_fault(shown: Demonstration) -> str:
    fault = problem_fault(shown.problem)
    if fault:
        return fault
    turns = _messages_fault(shown.turns)
    return f"problem {shown.problem.id}: the demonstration's `turns` {turns}" if turns else ""


def _messages_fault(messages: object) -> str:
    if not isinstance(messages, tuple) or not messages:
        given = type(messages).__name__ if messages or messages is None else "empty"
        return f"must be a tuple of engines.types.Message, not {given}"
    for message in messages:
        if not isinstance(message, Message):
            return f"holds {type(message).__name__}, not engines.types.Message"
        written: Any = message
        if written.role not in _ROLES:
            return f"has the role {written.role!r}; allowed: {', '.join(_ROLES)}"
        if not isinstance(written.content, str):
            return f"has a content that is {type(written.content).__name__}, not a text"
        for call in written.tool_calls:
            if not isinstance(call, ToolCall):
                return f"has a tool call that is {type(call).__name__}, not engines.types.ToolCall"
            if fault := json_fault(call.arguments):
                return f"calls {call.name} with arguments that are not plain: they {fault}"
    return ""


def _tool_fault(tool: Tool) -> str:
    for name, kind in tool.parameters.items():
        if kind not in _JSON_TYPES:
            return (
                f"gives its parameter {name} the type {kind!r}; allowed: {', '.join(_JSON_TYPES)}"
            )
    if kind_of_others(tool.schema):
        return ""
    unknown = [name for name in tool.required if name not in tool.parameters]
    return f"requires {', '.join(unknown)}, which it does not declare" if unknown else ""


def shared_id(problems: Sequence[Problem]) -> str:
    """What is wrong with the first id that two have: their rollouts would become one group."""
    first: dict[str, Problem] = {}
    for problem in problems:
        known = first.get(problem.id)
        first[problem.id] = problem
        if known is not None:
            what = "two problems with" if known != problem else "one problem twice, with"
            return (
                f"{what} the id {problem.id!r}: their rollouts would be one group; make every id"
                " unique, e.g. with the position in it"
            )
    return ""
