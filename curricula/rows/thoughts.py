"""Names under which rows hold what the assistant thinks before it answers."""

from __future__ import annotations

import re

from curricula.rows.fields import Fields
from infra.data_files.bad_row import BadRow, Reason

THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought", "thoughts")
"""names that are read"""
_LIKE_A_THOUGHT = re.compile(
    r"reasoning|think|thought|rationale|scratchpad|monologue|^analysis($|_)|(^|_)cot($|_)"
    r"|derivation",
    re.IGNORECASE,
)
_ABOUT_A_THOUGHT = re.compile(
    r"token|effort|budget|time|duration|second|length|count|enable|mode|level|type|format|signature"
    r"|model|score|_id$|_ms$",
    re.IGNORECASE,
)


def refuse_other_thoughts(row: Fields, where: str, reason: Reason, out: str) -> None:
    """Raises BadRow for a text, list or object under a name like one of a thought that was not
    read: the answer would be learned without it. `out`: what else can be done about it."""
    for name in sorted(row.left):
        if not _LIKE_A_THOUGHT.search(name) or _ABOUT_A_THOUGHT.search(name):
            continue
        if isinstance(row.values.get(name), str | list | dict):
            at = f"{where}: " if where else ""
            raise BadRow(
                reason,
                f"{at}has `{name}`, which is not read and looks like a thought; call it"
                f" `reasoning_content`, or {out}",
            )
