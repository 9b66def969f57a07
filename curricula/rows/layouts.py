"""Rows in OpenAI's layout and in ShareGPT's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeGuard, cast

from curricula.rows.columns import Columns, Layout
from curricula.rows.conversation import (
    Conversation,
    calls_of,
    fault_of_order,
    text_of,
    tools_of,
)
from curricula.rows.nulls import without_filled_nulls
from engines.types import Message, Tool
from infra.data_files.bad_row import BadRow, Reason
from infra.json_text import parse_json

Role = Literal["system", "user", "assistant", "tool"]
_OPENAI: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_SHAREGPT: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
_CALLS = ("function_call", "tool_call")
_REASONING = ("reasoning_content", "reasoning")
_WRITTEN_LIST = re.compile(r"""\s*\[\s*\{\s*["'](role|from|content|value)["']\s*:""")
_PYTHONS_LIST = re.compile(r"\s*\[\s*\{\s*'")
_UNREAD = ("function_call", "refusal", "audio", "images")
"""fields of a message that hold what a model would say or see, and that nothing here renders"""


def read_row(row: Mapping[str, Any], columns: Columns, layout: Layout) -> Conversation:
    """Raises BadRow."""
    is_talk = row.get("conversations") is not None
    name = columns.messages or ("conversations" if is_talk else "messages")
    tools = tools_of(column(row, columns.tools) if columns.tools else row.get("tools"))
    messages = _objects(column(row, name), name, tools)
    if _is_sharegpt(messages, layout):
        read = _sharegpt(row, messages, name, columns)
    else:
        read = _openai(messages, name)
        if columns.system:
            read = _with_system(read, column(row, columns.system))
    if fault := fault_of_order(read.messages):
        raise BadRow(Reason.MESSAGES, fault)
    return replace(read, tools=tools, weight=_weight(row, columns))


def read_messages(
    value: Any, name: str, layout: Layout, tools: Sequence[Tool]
) -> tuple[Message, ...]:
    """Those of a column, in whatever order they are. Raises BadRow."""
    messages = _objects(value, name, tools)
    if _is_sharegpt(messages, layout):
        return tuple(_sharegpt_message(m, f"{name}[{at}]") for at, m in enumerate(messages))
    return tuple(_openai_message(m, f"{name}[{at}]") for at, m in enumerate(messages))


def column(row: Mapping[str, Any], name: str) -> Any:
    """Raises BadRow where the row has none of this name."""
    if name not in row:
        has = ", ".join(map(str, row)) or "none"
        raise BadRow(Reason.COLUMNS, f"has no column {name}; it has {has[:200]}")
    return row[name]


def _is_sharegpt(messages: list[dict[str, Any]], layout: Layout) -> bool:
    return layout == "sharegpt" or (layout == "auto" and "from" in messages[0])


def is_text(value: Any) -> TypeGuard[str]:
    """Not of a list of messages that a table holds as text."""
    return isinstance(value, str) and not _WRITTEN_LIST.match(value)


def _objects(value: Any, name: str, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    value = _read_text(value, name) if isinstance(value, str) else value
    value = without_filled_nulls(value, tools)
    if isinstance(value, dict):
        value = _transposed(cast("dict[str, Any]", value))
    if not isinstance(value, list) or not value:
        raise BadRow(Reason.COLUMNS, f"{name}: is no list of messages")
    for at, message in enumerate(cast("list[Any]", value)):
        if not isinstance(message, dict):
            raise BadRow(Reason.MESSAGES, f"{name}[{at}]: is no object")
    return cast("list[dict[str, Any]]", value)


def _read_text(text: str, name: str) -> Any:
    if _PYTHONS_LIST.match(text):
        raise BadRow(
            Reason.COLUMNS,
            f"{name}: holds a list as Python prints it, which is no JSON; write the column with"
            " json.dumps",
        )
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadRow(
            Reason.COLUMNS, f"{name}: is no list of messages, nor one as JSON text: {error}"
        ) from None


def _transposed(value: dict[str, Any]) -> Any:
    """`datasets` writes a sequence of objects as an object of lists."""
    lengths = {len(each) if isinstance(each, list) else -1 for each in value.values()}
    if len(lengths) != 1 or lengths == {-1}:
        return value
    return [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]


def _weight(row: Mapping[str, Any], columns: Columns) -> float:
    if not columns.weight:
        return 1.0
    value = column(row, columns.weight)
    value = _number(value) if isinstance(value, str) else value  # a cell of CSV
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise BadRow(Reason.COLUMNS, f"{columns.weight}: {value!r:.40} is no weight, from 0")
    return float(value)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _openai(messages: list[dict[str, Any]], name: str) -> Conversation:
    untrained = {at for at, m in enumerate(messages) if _is_untrained(m, f"{name}[{at}]")}
    read = tuple(_openai_message(m, f"{name}[{at}]") for at, m in enumerate(messages))
    return Conversation(read, untrained=frozenset(untrained))


def _openai_message(message: Mapping[str, Any], where: str) -> Message:
    role = _role(message.get("role"), _OPENAI, where)
    for name in _UNREAD:
        if message.get(name):
            raise BadRow(Reason.MESSAGES, f"{where}: has `{name}`, which is not read")
    said = role == "assistant"
    thoughts = [message[name] for name in _REASONING if message.get(name)]
    return Message(
        role,
        text_of(message.get("content"), where),
        text_of(thoughts[0], where) if said and thoughts else None,
        calls_of(message.get("tool_calls"), where) if said else (),
    )


def _is_untrained(message: Mapping[str, Any], where: str) -> bool:
    weight = message.get("weight")
    if weight is None or message.get("role") != "assistant":
        return False
    if isinstance(weight, bool) or weight not in (0, 1):
        raise BadRow(Reason.MESSAGES, f"{where}: weight is {weight!r:.40}; allowed: 0 and 1")
    return weight == 0


def _sharegpt(
    row: Mapping[str, Any], messages: list[dict[str, Any]], name: str, columns: Columns
) -> Conversation:
    read = tuple(_sharegpt_message(m, f"{name}[{at}]") for at, m in enumerate(messages))
    system = column(row, columns.system) if columns.system else row.get("system")
    return _with_system(Conversation(read), system)


def _sharegpt_message(message: Mapping[str, Any], where: str) -> Message:
    said_by = message.get("from")
    role = _role(said_by, _SHAREGPT, where)
    if said_by in _CALLS:
        return Message(role, "", tool_calls=calls_of(message.get("value"), where))
    return Message(role, text_of(message.get("value"), where))


def _with_system(read: Conversation, system: Any) -> Conversation:
    text = text_of(system, "system")
    if not text:
        return read
    return replace(
        read,
        messages=(Message("system", text), *read.messages),
        untrained=frozenset(at + 1 for at in read.untrained),
    )


def _role(value: Any, roles: Mapping[str, Role], where: str) -> Role:
    if not isinstance(value, str) or value not in roles:
        allowed = ", ".join(roles)
        raise BadRow(Reason.MESSAGES, f"{where}: the role is {value!r:.40}; allowed: {allowed}")
    return roles[value]
