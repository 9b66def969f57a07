"""JSON whose numbers may be of any size: orjson makes floats of whole numbers of more than 64 bits,
and refuses to write them."""

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


def json_bytes(value: Any, *, sort_keys: bool = False) -> bytes:
    """Raises TypeError for a value that is no JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        pass  # it may hold a large number, or half a surrogate pair
    try:
        written = json.dumps(value, sort_keys=sort_keys, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # NaN
        raise TypeError(str(error)) from error
    return written.encode()
