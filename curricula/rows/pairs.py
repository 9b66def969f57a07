"""A row as a preference pair: one start, and two ways to go on, of which one is better.

TRL        {"prompt": ..., "chosen": ..., "rejected": ...}, texts or messages; without a
           prompt both are whole conversations
OpenAI     {"input": {"messages": [...]}, "preferred_output": [...],
           "non_preferred_output": [...]}
Anthropic  {"chosen": "\\n\\nHuman: ...\\n\\nAssistant: ...", "rejected": ...}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from curricula.rows.asked import TALKS, read_asked, read_system, what_follows, with_system
from curricula.rows.columns import Layout
from curricula.rows.conversation import Conversation, fault_of
from curricula.rows.fields import Fields, lacking
from curricula.rows.layouts import read_tools, refuse_unread
from curricula.rows.meaning import LEARNED, refuse_meaning
from curricula.rows.messages import Reading, Turn, is_text, read_turns
from curricula.rows.texts import shallow, text_of
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

    @property
    def layout(self) -> str:
        return self.chosen.layout

    @property
    def unread(self) -> frozenset[str]:
        return self.chosen.unread


@shallow
def read_pair(row: Mapping[str, Any], columns: PairColumns, layout: Layout) -> Pair:
    """Raises BadRow."""
    unread: set[str] = set()
    given = Fields(row, unread)
    if given.has("preferred_output"):
        inner = _openai_input(given, unread)
        reading = Reading(layout, read_tools(inner, columns.tools), unread)
        start = read_turns(inner.get("messages"), "input.messages", reading)
        names, looks_like = ("preferred_output", "non_preferred_output"), "OpenAI's pairs"
    else:
        names, inner = (columns.chosen, columns.rejected), given
        _require_sides(given, names)
        reading = Reading(layout, read_tools(inner, columns.tools), unread)
        start = _start(given, columns, reading)
        looks_like = " + ".join([*(["prompt"] if start else []), *names])
    system = read_system(inner, "")
    first, second = (_messages(given.column(name), name, reading, start, system) for name in names)
    refuse_unread(given, start, is_auto=not columns.prompt, has_system=False)
    refuse_meaning(given, LEARNED, "", Reason.COLUMNS)
    for each in {given, inner}:
        each.close()
    shared = _num_shared(first, second)
    _check(names, first, second, shared, reading.tools)
    only_read = frozenset(at for at in range(shared) if first[at].role == "assistant")
    made = (
        Conversation(
            messages, tuple(reading.tools), untrained=only_read, layout=looks_like,
            unread=frozenset(unread),
        )
        for messages in (first, second)
    )  # fmt: skip
    return Pair(*made)


def _check(
    names: tuple[str, str],
    first: tuple[Message, ...],
    second: tuple[Message, ...],
    shared: int,
    tools: Sequence[Tool],
) -> None:
    """Raises BadRow for what cannot be compared."""
    for name, messages in zip(names, (first, second), strict=True):
        if fault := fault_of(messages, tools):
            raise BadRow(Reason.MESSAGES, f"{name}: {fault}")
        if first == second:
            raise BadRow(Reason.MESSAGES, f"{names[0]} and {names[1]} are equal")
        if len(messages) == shared:
            raise BadRow(Reason.MESSAGES, f"{name}: says no more than the other one")
    if not any(message.role == "user" for message in first[:shared]):
        raise BadRow(Reason.MESSAGES, "chosen and rejected do not begin with the same messages")


def _require_sides(row: Fields, names: tuple[str, str]) -> None:
    """Raises BadRow that names the columns which may be meant."""
    for name, default in zip(names, ("chosen", "rejected"), strict=True):
        likely = next((each for each in row.names if default in each.lower()), "")
        if name == default and likely and not row.holds(name):
            raise lacking(name, row.names, f"; name it, e.g. columns.{name}: {likely}")


def _openai_input(row: Fields, unread: set[str]) -> Fields:
    given = row.column("input")
    if not isinstance(given, Mapping) or "messages" not in given:
        raise BadRow(Reason.COLUMNS, "input: has no messages")
    return Fields(cast("dict[str, Any]", given), unread, "input.")


def _start(row: Fields, columns: PairColumns, reading: Reading) -> list[Turn]:
    name = columns.prompt or row.first(("prompt", "instruction", "question", *TALKS))
    if not name:
        return []
    return read_asked(row, name, reading, auto=not columns.prompt).turns


def _messages(
    value: Any, name: str, reading: Reading, start: list[Turn], system: str
) -> tuple[Message, ...]:
    turns = [*start, *_continuation(value, name, reading, start)]
    return tuple(turn.message for turn in with_system(turns, system))


def _continuation(value: Any, name: str, reading: Reading, start: list[Turn]) -> list[Turn]:
    if isinstance(value, Mapping) and ("from" in value or "role" in value):
        value = [value]  # one message (LLaMA-Factory)
    if not is_text(value):
        return what_follows(start, read_turns(value, name, reading), name)
    text = text_of(value, name)
    if start:
        if not text.strip():
            raise BadRow(Reason.MESSAGES, f"{name}: is empty")
        return [Turn(Message("assistant", text))]
    parts = _TURN.split(text)
    if len(parts) < 5 or parts[0].strip():
        raise BadRow(
            Reason.MESSAGES, f"{name}: a text without a prompt must begin with '\\n\\nHuman:'"
        )
    said = zip(parts[1::2], parts[2::2], strict=True)
    return [Turn(Message("user" if w == "Human" else "assistant", t.strip())) for w, t in said]


def _num_shared(first: tuple[Message, ...], second: tuple[Message, ...]) -> int:
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
