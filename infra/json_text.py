"""JSON as it is written: whole numbers keep all their digits, and no key is lost.

The standard library reads numbers of any size, but also what is no JSON (NaN, half an emoji).
orjson refuses that, but makes floats of whole numbers of more than 64 bits, and refuses to write
them. Both keep the last of two equal keys without a word.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

import orjson


class DuplicateKey(ValueError):
    """An object has a key twice, so it does not say which value counts."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key!r:.80} stands twice in one object")


def parse_json(text: bytes | str) -> Any:
    """Raises ValueError for what is not JSON in UTF-8, DuplicateKey for a key that stands twice."""
    orjson.loads(text)
    return _parsed(text)


def parse_loosely(text: bytes | str) -> tuple[Any, bool]:
    """The value, and whether it is JSON throughout: where it is not, `json_fault` tells of which
    part. Raises what `parse_json` raises for text that Python's reader refuses as well, and
    UnicodeDecodeError for what is not UTF-8."""
    try:
        return parse_json(text), True
    except orjson.JSONDecodeError as error:
        try:
            return _parsed(text), False
        except (DuplicateKey, UnicodeDecodeError):
            raise
        except ValueError:  # orjson's words are as good
            raise error from None


def json_fault(value: Any) -> str:
    """Why a value of any depth is no JSON; empty if it is."""
    if value is None or isinstance(value, bool | int):
        return ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{_spelled(value)} is no JSON"
    if isinstance(value, str):
        return "" if value.isascii() or _is_text(value) else "half an emoji is no text"
    if isinstance(value, list):
        return next(filter(None, map(json_fault, cast("list[Any]", value))), "")
    if isinstance(value, dict):
        value = cast("dict[Any, Any]", value)
        for key in value:
            if not isinstance(key, str):
                return f"the key {key!r:.40} is no text"
        return next(filter(None, map(json_fault, value.values())), "")
    return f"a value of type {type(value).__name__} ({value!s:.40}) is no JSON; write it as text"


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


def _parsed(text: bytes | str) -> Any:
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKey(next(key for at, key in enumerate(keys) if key in keys[:at]))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _spelled(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def writable(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, such as half an emoji, which UTF-8 cannot
    hold."""
    return text.encode(errors="replace").decode()
