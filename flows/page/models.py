"""Models by name as a form takes them: lines `NAME=FOLDER`, or a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.load import is_name, parse_lines
from infra.errors import InputError


def models_of(written: str | Mapping[str, Any]) -> dict[str, str]:
    """HF folders by name. Raises InputError that names the line."""
    if isinstance(written, Mapping):
        pairs = [(str(name), str(folder)) for name, folder in written.items()]
    else:
        pairs = [_pair(line) for line in parse_lines(written)]
    if not pairs:
        raise InputError("models: name at least one as a line NAME=FOLDER")
    found: dict[str, str] = {}
    for name, folder in pairs:
        if not is_name(name):
            raise InputError(
                f"models: `{name}` is no name: small letters, digits and `-`, as in"
                " candidate=/models/one"
            )
        if name in found:
            raise InputError(
                f"models: `{name}` is written twice; give each model a name of its own"
            )
        found[name] = folder
    return found


def _pair(line: str) -> tuple[str, str]:
    name, equals, folder = (part.strip() for part in line.partition("="))
    if not (name and equals and folder):
        raise InputError(f"models: `{line}`: write each model as NAME=FOLDER, one a line")
    return name, folder
