"""A row as a prompt: what the model is asked, and what its answer is compared with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from curricula.prompt_files.prompt_reference import Reference, exact, read_reference
from curricula.prompt_files.row_tests import TESTS
from curricula.prompt_files.spec import PromptSource
from curricula.rows.asked import ASKED, TALKS, read_asked, read_system, with_system
from curricula.rows.conversation import fault_of_calls, fault_of_text
from curricula.rows.fields import Fields, lacking
from curricula.rows.layouts import PROMPTS_READ, nearest_prompt, read_tools, refuse_unread
from curricula.rows.messages import Reading, Turn
from curricula.rows.texts import shallow, text_of
from curricula.rows.tools import read_switches
from engines.types import Json, Message, Tool
from infra.data_files.rows import BadRow, Reason
from infra.json_text import value_text

PROMPTS = (
    "prompt", "question", "problem", *TALKS, "instruction", "query", "input", "inputs",
)  # fmt: skip


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
    """what was said and offered in the row itself: two rows with the same one are one problem"""
    text_asked: str
    """of that, what the user said"""
    thinking: bool | None = None
    """whether a thought is asked for; None: the row says nothing of it"""
    unanswered: str = field(default="", compare=False)
    """what rewards that compare an answer do not find in the reference"""
    layout: str = field(default="", compare=False)
    """what the row looks like, for a person"""
    unread: frozenset[str] = field(default=frozenset(), compare=False)
    """columns, and fields inside them, that say something and change nothing"""
    used: frozenset[str] = field(default=frozenset(), compare=False)
    """columns of which the prompt is made"""


@shallow
def read_prompt(row: Mapping[str, Any], source: PromptSource) -> Prompt:
    """Raises BadRow."""
    columns, unread = source.columns, set[str]()
    given = Fields(row, unread)
    tools = read_tools(given, columns.tools)
    said, looks_like = _messages(given, source, Reading(source.format, tools, unread))
    if fault := _fault(said) or fault_of_text(said) or fault_of_calls(said, tools):
        raise BadRow(Reason.MESSAGES, fault)
    reference = read_reference(given, source)
    metadata = {name: exact(given.column(name)) for name in columns.metadata}
    solution = _solution(given, columns.solution, reference)
    if columns.id:
        given.column(columns.id)
    thinking = _thinking(given)
    turns = [Turn(message) for message in said]
    refuse_unread(given, turns, is_auto=not columns.prompt, has_system=bool(columns.system))
    given.close()
    return Prompt(
        messages=_with_wording(said, source),
        reference=reference.value,
        tools=tools,
        metadata=metadata,
        solution=solution,
        text="\n".join([*map(_said, said), *map(_offered, tools)]),
        text_asked="\n".join(m.content for m in said if m.role == "user"),
        thinking=thinking,
        unanswered=reference.unanswered,
        layout=f"{looks_like}, {reference.said}",
        unread=frozenset(unread),
        used=given.read,
    )


def id_of(row: Mapping[str, Any], source: PromptSource, text: str) -> str:
    """Raises BadRow."""
    if not source.columns.id:
        return f"{checksum(text):016x}"
    value = Fields(row, set()).column(source.columns.id)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadRow(Reason.COLUMNS, f"{source.columns.id}: {value!r:.40} is no id")
    return str(value)


def used_columns(row: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
    """The row with nothing but what is read of it."""
    return {name: row[name] for name in row if name in prompt.used}


def checksum(text: str) -> int:
    """64 bits that stay the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def reference_checksum(prompt: Prompt) -> int:
    """0 where there is no reference."""
    if not prompt.reference:
        return 0
    return checksum(json.dumps(prompt.reference, sort_keys=True))


def contradict(reference: int, other: int) -> bool:
    """Return whether two references, by their checksums, are there and differ."""
    return 0 not in (reference, other) and reference != other


def _thinking(row: Fields) -> bool | None:
    switches = read_switches(row)
    if len({*switches.values()}) > 1:
        named = " and ".join(f"`{name}`" for name in switches)
        raise BadRow(
            Reason.COLUMNS, f"has {named}, of which one turns thinking on and one off; leave one"
        )
    return next(iter(switches.values()), None)


def _said(message: Message) -> str:
    """Return a message with its thought and calls. White space at the ends of lines and of the text
    does not count; all other does, as in grids and in code. Only a message or a tool begins a line
    without a tab."""
    calls = [json.dumps([c.name, c.arguments], sort_keys=True) for c in message.tool_calls]
    lines = "\n".join(line.rstrip() for line in message.content.split("\n")).strip()
    thought = [json.dumps(message.reasoning)] if message.reasoning else []
    return " ".join([f"{message.role}: {lines}", *thought, *calls]).replace("\n", "\n\t")


def _offered(tool: Tool) -> str:
    """Return a tool as the model gets it. The same question with other tools is another problem."""
    said = [tool.name, tool.description, tool.schema]
    return "offers: " + json.dumps(said, sort_keys=True)


def _messages(
    row: Fields, source: PromptSource, reading: Reading
) -> tuple[tuple[Message, ...], str]:
    """Return what the model is asked, and the columns that say it."""
    columns = source.columns
    name = columns.prompt or row.first(PROMPTS)
    if not name:
        name = next(filter(row.holds, PROMPTS), "prompt")
        if not row.holds(name):
            more = f". Prompts are read from: {PROMPTS_READ}{nearest_prompt(row.values)}"
            raise lacking(name, row.names, more)
    asked = read_asked(row, name, reading, auto=not columns.prompt)
    # What follows the last question is its answer, which a row of conversations holds as well.
    roles = [turn.message.role for turn in asked.turns]
    last = max((at for at, role in enumerate(roles) if role in ("user", "tool")), default=-1)
    turns = asked.turns[: last + 1]
    if turns and len(turns) < len(asked.turns) and name in ASKED:
        row.note_unread([f"{name}, what the assistant says last"])
    if turns:
        turns = with_system(turns, read_system(row, columns.system))
    return tuple(turn.message for turn in turns), asked.columns


def _fault(messages: Sequence[Message]) -> str:
    """Return what keeps messages from being a prompt; empty for none."""
    if not any(m.role == "user" and m.content.strip() for m in messages):
        return "the user says nothing"
    if next(m.role for m in messages if m.role != "system") == "assistant":
        return "the assistant speaks first; there is nothing that it answers"
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


def _solution(row: Fields, name: str, reference: Reference) -> str:
    if name:
        text = text_of(row.column(name), name)
        is_code = isinstance(reference.value, dict) and TESTS in reference.value
        return f"```python\n{text}\n```" if is_code and "```" not in text else text
    value = reference.value
    answer = value.get("answer") if isinstance(value, dict) else None
    if isinstance(answer, list) and answer:  # several that are right
        answer = answer[0]
    return value_text(answer) if isinstance(answer, str | int | float) else ""
