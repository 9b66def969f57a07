"""A small repository as data: text by path, what may be edited, and what an edit does.

Tools read and edit the data; a sandbox is needed only where its code runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Files = Mapping[str, str]
MOST_TEXT = 200_000
"""characters of one file after an edit"""
MOST_LINES = 20
"""that a search shows"""


class EditRefused(Exception):
    """An edit that changes nothing; its text says why, in a line."""


def listed(files: Files) -> str:
    """The paths, one a line."""
    return "\n".join(sorted(files))


def found(files: Files, text: str) -> str:
    """Lines that hold `text`, e.g. `cat.py:2: return a + b`; or `no`."""
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(files)
        for number, line in enumerate(files[path].splitlines(), 1)
        if text and text in line
    ]
    left = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"and {left} more"] if left > 0 else [])]) or "no"


def edited(files: Files, protected: Collection[str], path: str, old: str, new: str) -> Files:
    """The files after one replacement of `old`, which must be in the file once.

    Raises EditRefused.
    """
    if path in protected:
        raise EditRefused(f"{path} is protected")
    if path not in files:
        raise EditRefused(f"no file {path}")
    times = files[path].count(old) if old else 0
    if times != 1:
        raise EditRefused(f"that text is {times} times in {path}, not once")
    text = files[path].replace(old, new)
    if len(text) > MOST_TEXT:
        raise EditRefused(f"{path} would be longer than {MOST_TEXT} characters")
    return {**files, path: text}
