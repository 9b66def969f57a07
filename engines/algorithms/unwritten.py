"""JSON schemas in which a form finds nothing to fill in by itself.

A form such as Prefect's submits every default that it finds in a schema, and what is written wins
over a preset: so a schema tells it of no default where a preset may have another.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
_NULL: Schema = {"type": "null"}


def nullable(properties: Schema) -> None:
    """Let each property be null, which is its default: as the preset says."""
    for name, found in properties.items():
        about = {key: found.pop(key) for key in ("title", "description") if key in found}
        found.pop("default", None)
        found.pop("discriminator", None)
        choices = found.pop("oneOf", None) or found.pop("anyOf", None) or [dict(found)]
        if _NULL not in choices:
            choices = [*choices, _NULL]
        properties[name] = {**about, "anyOf": choices, "default": None}


def without_defaults(properties: Schema) -> None:
    """Leave each property's default to its description."""
    for found in properties.values():
        default = found.pop("default", None)
        if default is not None:
            told = f"Left out: {default}, unless the preset says otherwise"
            found["description"] = "\n".join([*filter(None, [found.get("description")]), told])
