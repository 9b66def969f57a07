"""A row as a preference pair: one start, and two ways to go on, of which one is better.

TRL        {"prompt": ..., "chosen": ..., "rejected": ...}, texts or messages; without a
           prompt both are whole conversations
OpenAI     {"input": {"messages": [...]}, "preferred_output": [...],
           "non_preferred_output": [...]}
Anthropic  {"chosen": "\\n\\nHuman: ...\\n\\nAssistant: ...", "rejected": ...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from curricula.rows.columns import Layout
from curricula.rows.conversation import Conversation, fault_of_order, tools_of
from curricula.rows.layouts import column, is_text, read_messages
from engines.types import Message, Tool
from infra.config import Config
from infra.data_files.bad_row import BadRow, Reason

_TURN = re.compile(r"\n\n(Human|Assistant):")


class PairColumns(Config):
    """Names of the columns. A row that lacks a column named here is a bad row."""

    prompt: str = ""
    """what both begin with; empty: `prompt`, where a row has it"""
    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str = ""
    """empty: `tools`, where a row has it"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two conversations that begin alike; only what comes after is compared."""

    chosen: Conversation
    rejected: Conversation


def read_pair(row: Mapping[str, Any], columns: PairColumns, layout: Layout) -> Pair:
    """Raises BadRow."""
    if row.get("preferred_output") is not None:
        given = _openai_input(row)
        tools = _tools(given, columns)
        start = read_messages(given["messages"], "input.messages", layout, tools)
        names = ("preferred_output", "non_preferred_output")
    else:
        names, tools = (columns.chosen, columns.rejected), _tools(row, columns)
        start = _start(row, columns, layout, tools)
    first, second = (
        start + _continuation(column(row, name), name, layout, start, tools) for name in names
    )
    shared = _num_shared(first, second)
    for name, messages in zip(names, (first, second), strict=True):
        if fault := fault_of_order(messages):
            raise BadRow(Reason.MESSAGES, f"{name}: {fault}")
        if len(messages) == shared:
            raise BadRow(Reason.MESSAGES, f"{name}: says no more than the other one")
    if not any(message.role == "user" for message in first[:shared]):
        raise BadRow(Reason.MESSAGES, "chosen and rejected do not begin with the same messages")
    only_read = frozenset(at for at in range(shared) if first[at].role == "assistant")
    return Pair(
        Conversation(first, tools, untrained=only_read),
        Conversation(second, tools, untrained=only_read),
    )


def _tools(given: Mapping[str, Any], columns: PairColumns) -> tuple[Tool, ...]:
    return tools_of(column(given, columns.tools) if columns.tools else given.get("tools"))


def _openai_input(row: Mapping[str, Any]) -> Mapping[str, Any]:
    given = column(row, "input")
    if not isinstance(given, Mapping) or "messages" not in given:
        raise BadRow(Reason.COLUMNS, "input: has no messages")
    return cast("Mapping[str, Any]", given)


def _start(
    row: Mapping[str, Any], columns: PairColumns, layout: Layout, tools: tuple[Tool, ...]
) -> tuple[Message, ...]:
    name = columns.prompt or "prompt"
    if not columns.prompt and row.get(name) is None:
        return ()
    value = column(row, name)
    if is_text(value):
        return (Message("user", value),)
    return read_messages(value, name, layout, tools)


def _continuation(
    value: Any, name: str, layout: Layout, start: tuple[Message, ...], tools: tuple[Tool, ...]
) -> tuple[Message, ...]:
    if not is_text(value):
        messages = read_messages(value, name, layout, tools)
        # Some files repeat the prompt in both.
        return messages[len(start) :] if start and messages[: len(start)] == start else messages
    if start:
        return (Message("assistant", value),)
    parts = _TURN.split(value)
    if len(parts) < 5 or parts[0].strip():
        raise BadRow(
            Reason.MESSAGES, f"{name}: a text without a prompt must begin with '\\n\\nHuman:'"
        )
    said = zip(parts[1::2], parts[2::2], strict=True)
    return tuple(Message("user" if w == "Human" else "assistant", t.strip()) for w, t in said)


def _num_shared(first: tuple[Message, ...], second: tuple[Message, ...]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
