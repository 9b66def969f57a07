"""JSON that says what it must be: a flipped bit anywhere in it is noticed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_KEY = "checksum"


def seal(text: str) -> bytes:
    """A JSON object with a checksum of the rest of it as its last field."""
    fields: dict[str, Any] = json.loads(text)
    return json.dumps(fields | {_KEY: _checksum(fields)}, indent=1).encode()


def unseal(data: bytes) -> bytes:
    """The object's JSON without its checksum. Raises ValueError where they do not agree."""
    fields: Any = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"is a {type(fields).__name__}, not an object")
    found = fields.pop(_KEY, None)
    if found is None:
        raise ValueError("has no checksum")
    if found != _checksum(fields):
        raise ValueError("does not agree with its own checksum")
    return json.dumps(fields).encode()


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
