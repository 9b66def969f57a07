"""JSON as people wrote it: orjson makes floats of whole numbers that have more than 64 bits."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_MAYBE_LARGE = re.compile(rb"\d{19}")


def parse_json(text: bytes) -> Any:
    """Raises ValueError for what is not JSON in UTF-8."""
    value = orjson.loads(text)
    return json.loads(text) if _MAYBE_LARGE.search(text) else value


def json_bytes(value: Any) -> bytes:
    """Raises TypeError for a value that is no JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # NaN, or a lone surrogate
            raise TypeError(str(error)) from error
