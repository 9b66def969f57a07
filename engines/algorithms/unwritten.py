"""JSON schemas in which a form finds nothing to fill in by itself.

A form such as Prefect's submits every default that it finds in a schema, and what is written wins
over a preset: so a schema tells it of no default where a preset may have another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]
_NULL: Schema = {"type": "null"}


def nullable(properties: Schema, names: Iterable[str]) -> None:
    """Let these properties be null, which is their default: as the preset says."""
    for name in names:
        found = properties[name]
        about = {key: found.pop(key) for key in ("title", "description") if key in found}
        found.pop("default", None)
        found.pop("discriminator", None)
        choices = found.pop("oneOf", None) or found.pop("anyOf", None) or [dict(found)]
        if _NULL not in choices:
            choices = [*choices, _NULL]
        properties[name] = {**about, "anyOf": choices, "default": None}


def without_defaults(properties: Schema) -> None:
    """Leave each property's default to its description. A switch can be null, as a form would show
    one that nobody touched as off; a constant is filled in."""
    for name, found in properties.items():
        if "const" in found:
            found["default"] = found["const"]
            continue
        default = found.pop("default", None)
        if default is not None:
            told = f"Left out: {default}, unless the preset says otherwise"
            found["description"] = "\n".join([*filter(None, [found.get("description")]), told])
        if found.get("type") == "boolean":
            nullable(properties, [name])


def is_unwritten(value: Any, otherwise: Any) -> bool:
    """Whether a value says no more than its absence, given what holds without it."""
    return value is None and isinstance(otherwise, bool)
