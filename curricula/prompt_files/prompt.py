"""A row as a prompt: what the model is asked, and what its answer is compared with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from curricula.prompt_files.spec import PromptSource
from curricula.rows.conversation import text_of, tools_of
from curricula.rows.layouts import column, is_text, read_messages
from engines.types import Json, Message, Tool
from infra.data_files.bad_row import BadRow, Reason
from infra.data_files.rows import RowWithFaults

PROMPTS = ("prompt", "question", "problem", "messages", "conversations")
REFERENCES = ("reference", "answer", "ground_truth", "target")
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one row says."""

    messages: tuple[Message, ...]
    """as the model gets them"""
    reference: Json
    tools: tuple[Tool, ...]
    metadata: Mapping[str, Json]
    solution: str
    """empty: the row shows none"""
    text: str
    """what was said in the row itself: two rows with the same one are one problem"""
    text_asked: str
    """of that, what the user said"""


def read_prompt(row: Mapping[str, Any], source: PromptSource) -> Prompt:
    """Raises BadRow."""
    columns = source.columns
    tools = tools_of(column(row, columns.tools) if columns.tools else row.get("tools"))
    said = _messages(row, source, tools)
    if columns.system and (text := text_of(column(row, columns.system), columns.system)):
        said = (Message("system", text), *said)
    if fault := _fault(said):
        raise BadRow(Reason.MESSAGES, fault)
    reference = _reference(row, source)
    return Prompt(
        messages=_with_wording(said, source),
        reference=reference,
        tools=tools,
        metadata={name: _exact(column(row, name)) for name in columns.metadata},
        solution=_solution(row, columns.solution, reference),
        text="\n".join(map(_said, said)),
        text_asked="\n".join(m.content for m in said if m.role == "user"),
    )


def id_of(row: Mapping[str, Any], source: PromptSource, text: str) -> str:
    """Raises BadRow."""
    if not source.columns.id:
        return f"{checksum(text):016x}"
    value = column(row, source.columns.id)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRow(Reason.COLUMNS, f"{source.columns.id}: {value!r:.40} is no id")
    return str(value)


def used_columns(row: Mapping[str, Any], source: PromptSource) -> dict[str, Any]:
    """The row with nothing but what is read of it."""
    named = source.columns
    names = {named.prompt, named.reference, named.id, named.system, named.tools, named.solution}
    names |= {"tools", *named.metadata, *(PROMPTS if not named.prompt else ())}
    names |= set(REFERENCES if not named.reference else ())
    faults = row.faults if isinstance(row, RowWithFaults) else {}
    return {name: row[name] for name in row if name in names and name not in faults}


def checksum(text: str) -> int:
    """64 bits that stay the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _said(message: Message) -> str:
    """A message with what it calls. White space at the ends of lines and of the text does not
    count; all other does, as in grids and in code. Only a message begins a line without a tab."""
    calls = [json.dumps([c.name, c.arguments], sort_keys=True) for c in message.tool_calls]
    lines = "\n".join(line.rstrip() for line in message.content.split("\n")).strip()
    return " ".join([f"{message.role}: {lines}", *calls]).replace("\n", "\n\t")


def _messages(
    row: Mapping[str, Any], source: PromptSource, tools: tuple[Tool, ...]
) -> tuple[Message, ...]:
    name = source.columns.prompt or _first(row, PROMPTS)
    value = column(row, name)
    if is_text(value):
        return (Message("user", value),)
    messages = read_messages(value, name, source.format, tools)
    # What follows the last question is its answer, which a row of conversations holds as well.
    asked = max((at for at, m in enumerate(messages) if m.role in ("user", "tool")), default=-1)
    return messages[: asked + 1]


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """One that can be read, before one that holds what is no JSON."""
    faults = row.faults if isinstance(row, RowWithFaults) else {}
    there = [name for name in names if name in faults or not _is_missing(row.get(name))]
    return next((name for name in there if name not in faults), (there or names)[0])


def _is_missing(value: Any) -> bool:
    """Null, or what a column of numbers has in its place."""
    return value is None or value != value


def _fault(messages: Sequence[Message]) -> str:
    """What keeps messages from being a prompt; empty for none."""
    if not any(m.role == "user" and m.content.strip() for m in messages):
        return "the user says nothing"
    for at, message in enumerate(messages):
        if message.role == "system" and at > 0:
            return f"messages[{at}]: a system message comes first or not at all"
    return ""


def _with_wording(said: tuple[Message, ...], source: PromptSource) -> tuple[Message, ...]:
    if source.system and said[0].role != "system":
        said = (Message("system", source.system), *said)
    if source.instruction and said[-1].role == "user":
        last = said[-1]
        said = (*said[:-1], replace(last, content=f"{last.content}\n\n{source.instruction}"))
    return said


def _reference(row: Mapping[str, Any], source: PromptSource) -> Json:
    """An object as it is; anything else as `{"answer": ...}`; without one, an empty object."""
    name = source.columns.reference
    if not name:
        name = _first(row, REFERENCES)
        if _is_missing(row.get(name)):
            return {}
    value = column(row, name)
    if _is_missing(value) or value == "":
        raise BadRow(Reason.REFERENCE, f"{name}: is empty")
    if source.reference_pattern:
        value = _matched(value, source.reference_pattern, name)
    value = _exact(value)
    return value if isinstance(value, dict) else {"answer": value}


def _exact(value: Any) -> Any:
    """Whole numbers of more than 64 bits as text: not everything that a rollout passes through
    keeps their digits."""
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_exact(each) for each in cast("list[Any]", value)]
    is_large = isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT
    return str(value) if is_large else value


def _matched(value: Any, pattern: str, name: str) -> str:
    found = list(re.finditer(pattern, str(value)))
    if not found:
        raise BadRow(Reason.REFERENCE, f"{name}: {str(value)[-40:]!r} has no match of {pattern!r}")
    return (found[-1].group(1) if found[-1].re.groups else found[-1].group()).strip()


def _solution(row: Mapping[str, Any], name: str, reference: Json) -> str:
    if name:
        return text_of(column(row, name), name)
    answer = reference.get("answer") if isinstance(reference, dict) else None
    is_shown = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return str(answer) if is_shown else ""
