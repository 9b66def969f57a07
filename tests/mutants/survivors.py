"""Survivors that are known, and why each is left.

`True`: equivalent, no input gives another result. `False`: a gap, or not worth a test.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[bool, str]] = {}
"""name of the mutant without its line -> (equivalent or not, reason)"""


def said_of(name: str) -> str:
    """The reason for a survivor, e.g. `a/b.py:12 constant: 1 -> 2`."""
    equivalent, why = KNOWN.get(without_line(name), (False, ""))
    if not why:
        return "no reason given"
    return f"{'equivalent' if equivalent else 'not equivalent'}: {why}"


def is_equivalent(name: str) -> bool:
    return KNOWN.get(without_line(name), (False, ""))[0]


def without_line(name: str) -> str:
    place, _, change = name.partition(" ")
    return f"{place.partition(':')[0]} {change}"
