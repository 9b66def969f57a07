"""Names under which rows hold what the assistant thinks before it answers, or that it does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from curricula.rows.fields import Fields, is_empty
from curricula.rows.meaning import Meaning, carries
from engines.types import Message
from infra.data_files.tally import BadRow, Reason

THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
"""names that are read"""
_SWITCHES = ("enable_thinking", "thinking_enabled", "use_thinking", "think")
"""beside these, names of what turns thinking on where it is true"""
_LIKE_A_THOUGHT = re.compile(
    r"reasoning|think|thought|rationale|scratchpad|monologue|^analysis($|_)|(^|_)cot($|_)|tool_plan"
    r"|derivation",
    re.IGNORECASE,
)
_ABOUT_A_THOUGHT = re.compile(
    r"token|effort|budget|time|duration|second|length|count|enable|mode|level|type|format|signature"
    r"|model|score|_id$|_ms$|^is_|^has_",
    re.IGNORECASE,
)


def refuse_other_thoughts(row: Fields, where: str, reason: Reason, out: str) -> None:
    """Raises BadRow for a text, list or object under a name like one of a thought that was not
    read: the answer would be learned without it. `out`: what else can be done about it."""
    for name in filter(is_like_a_thought, sorted(row.left)):
        if isinstance(row.values.get(name), str | list | dict):
            at = f"{where}: " if where else ""
            raise BadRow(
                reason,
                f"{at}has `{name}`, which is not read and looks like a thought; call it"
                f" `reasoning_content`, or {out}",
            )


def is_like_a_thought(name: str) -> bool:
    return bool(_LIKE_A_THOUGHT.search(name)) and not _ABOUT_A_THOUGHT.search(name)


def read_switches(row: Fields) -> dict[str, bool]:
    """Columns that say whether a row's answers hold thoughts. Examples: `reasoning` "on",
    `chat_template_kwargs` {"enable_thinking": false}."""
    found: dict[str, bool] = {}
    for name in sorted(row.left):
        if name in THOUGHTS or carries(name, Meaning.SWITCH):
            is_on = _switch(name, row.values.get(name))
            if is_on is not None:
                found[name] = is_on
                row.get(name)
    return found


def _switch(name: str, value: Any) -> bool | None:
    """Whether it turns thinking on; None for what says something else."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        said = {each: inner for each, inner in held.items() if not is_empty(inner)}
        name, value = next(iter(said.items())) if len(said) == 1 else ("", None)
    if name not in THOUGHTS and name not in _SWITCHES:
        return None
    if isinstance(value, str):  # also as a cell of CSV
        return {"on": True, "true": True, "off": False, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


def require_as_switched(switches: Mapping[str, bool], messages: Sequence[Message]) -> None:
    """Raises BadRow for answers that have thoughts where the row says that they have none, or the
    other way round."""
    answers = [message for message in messages if message.role == "assistant"]
    thinks = any(m.reasoning or m.content.lstrip().startswith("<think>") for m in answers)
    for name, is_on in switches.items():
        if is_on != thinks:
            raise BadRow(
                Reason.COLUMNS,
                f"has `{name}`, which turns thinking {'on' if is_on else 'off'}, and"
                f" {'a' if thinks else 'no'} thought; {Meaning.SWITCH.value.advice}: leave out the"
                " column, or the row",
            )
