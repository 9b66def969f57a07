"""Texts, and JSON, inside a row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from infra.data_files.rows import BadRow, Reason
from infra.json_text import parse_json

P = ParamSpec("P")
T = TypeVar("T")
_TEXTS = ("text", "input_text", "output_text")
"""types of parts that are text"""
_WRITTEN_PARTS = re.compile(r'\s*\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:')
_OPENS_LIST = re.compile(r"""\s*\[\s*\{\s*["']((?:role|from|content|value)["']\s*:)?""")
_ROLE = re.compile(r"""["']role["']\s*:""")
_AS_PYTHON_PRINTS = re.compile(r"\s*+\[?\s*+\{?\s*+'")
_DEEPEST = 100
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
"""characters of no width"""
_KINDS: Mapping[type, str] = {
    dict: "an object", list: "a list", str: "a text", bool: "a truth value",
    int: "a number", float: "a number", type(None): "null",
}  # fmt: skip
_HARMLESS = ("cache_control", "annotations", "id", "index", "logprobs", "citations")
"""what a part of text has beside it, and what changes nothing here"""


def shallow(read: Callable[P, T]) -> Callable[P, T]:
    """Makes a bad row of one that is nested too deeply for `read`."""

    @wraps(read)
    def reader(*given: P.args, **named: P.kwargs) -> T:
        try:
            return read(*given, **named)
        except RecursionError:
            raise BadRow(Reason.COLUMNS, "is nested too deeply") from None

    return reader


def kind_of(value: Any) -> str:
    """Name the kind in words."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def is_blank(text: str) -> bool:
    """Return whether a reader sees nothing of it."""
    if text.isascii():
        return not text or text.isspace()
    return all(c in _INVISIBLE or c.isspace() for c in text)


def is_written_parts(text: str) -> bool:
    """Return whether a text is a list of parts as JSON, which would be learned as it stands."""
    return bool(_WRITTEN_PARTS.match(text)) and isinstance(parsed_object(text), list)


def is_written_list(text: str) -> bool:
    """Return whether a text is a list of messages, as JSON or as Python prints it."""
    opening = _OPENS_LIST.match(text)
    if opening is None or opening[1]:
        return opening is not None
    rest = text[opening.end() :].rstrip()
    closes = rest.endswith("]") and rest[:-1].rstrip().endswith("}")
    return closes and _ROLE.search(rest) is not None


def are_tokens(value: Any) -> bool:
    """Return whether it is a list of whole numbers, as ids of tokens are."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(type(each) is int for each in items)


def text_of(content: Any, where: str) -> str:
    """Return a message's text: a string, parts of text, or none. Raises BadRow."""
    if content is None:
        return ""
    if isinstance(content, str):
        return checked_text(content, where)
    if isinstance(content, list):
        return "".join(_part(part, where) for part in cast("list[Any]", content))
    raise BadRow(Reason.MESSAGES, f"{where}: its content is no text but {kind_of(content)}")


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        return text_of(part, where)
    part = cast("Mapping[str, Any]", part)
    kind = part.get("type") or "text"
    if kind not in _TEXTS or not isinstance(part.get("text"), str):
        calls = str(kind).startswith("tool")  # Anthropic's
        more = "; calls are read from `tool_calls`, results from messages of role tool"
        raise BadRow(
            Reason.MESSAGES,
            f"{where}: a part of type {part.get('type')!r} is no text{more if calls else ''}",
        )
    others = [n for n, v in part.items() if n not in ("type", "text") and v not in (None, [], {})]
    if others and not part.get("type"):
        names = ", ".join(part)
        raise BadRow(Reason.MESSAGES, f"{where}: a part without a type is no text; it has {names}")
    if marks := [name for name in others if name not in _HARMLESS]:
        raise BadRow(Reason.MESSAGES, f"{where}: a part has `{marks[0]}`, which is not read")
    return checked_text(part["text"], where)


def thought_in(part: Mapping[str, Any], where: str) -> str:
    """Return what a part of type `thinking` says. Raises BadRow."""
    if not isinstance(part.get("thinking"), str | list):
        has = ", ".join(part)
        raise BadRow(
            Reason.MESSAGES,
            f"{where}: a part of type 'thinking' says nothing under `thinking`; it has {has}",
        )
    if part.get("closed") is False:
        raise BadRow(Reason.MESSAGES, f"{where}: a part has `closed` false: its thought is cut off")
    known = ("type", "thinking", "signature", "closed", *_HARMLESS)
    if unread := [n for n, v in part.items() if n not in known and v not in (None, [], {})]:
        raise BadRow(Reason.MESSAGES, f"{where}: a part has `{unread[0]}`, which is not read")
    return text_of(part["thinking"], where)


def checked_text(text: str, where: str) -> str:
    """Returns the text. Raises BadRow for half of a surrogate pair, which no file can hold."""
    if not text.isascii():
        _check_utf8(text, where, Reason.MESSAGES)
    return text


def parsed(value: Any, where: str, reason: Reason) -> Any:
    """JSON text read; anything else as it is. Raises BadRow for what is not JSON."""
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = parse_json(value.encode())
        except (ValueError, RecursionError) as error:
            pythons = "; it is written as Python prints it: write it with json.dumps"
            more = pythons if _AS_PYTHON_PRINTS.match(value) else ""
            raise BadRow(reason, f"{where}: is not JSON: {_short(error)}{more}") from None
    check_json(value, where, reason)
    return value


def parsed_object(value: Any) -> Any:
    """The object or list that a text holds as JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return parse_json(value.encode())
        except (ValueError, RecursionError):
            return value
    return value


def check_json(value: Any, where: str, reason: Reason) -> None:
    """Raises BadRow for what JSON text in UTF-8 cannot hold, and for what is nested too deeply."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        each, depth = todo.pop()
        if depth > _DEEPEST:
            raise BadRow(reason, f"{where}: is nested deeper than {_DEEPEST}")
        if isinstance(each, dict):
            held = cast("dict[Any, Any]", each)
            todo += [(item, depth + 1) for pair in held.items() for item in pair]
        elif isinstance(each, list):
            todo += [(item, depth + 1) for item in cast("list[Any]", each)]
        elif isinstance(each, str):
            if not each.isascii():
                _check_utf8(each, where, reason)
        elif isinstance(each, float):
            if not math.isfinite(each):
                raise BadRow(reason, f"{where}: holds {each}, which is no JSON")
        elif each is not None and not isinstance(each, int):
            raise BadRow(reason, f"{where}: holds {kind_of(each)}, which is no JSON")


def _check_utf8(text: str, where: str, reason: Reason) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(reason, f"{where}: holds half of a surrogate pair, which is no text") from None


def _short(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return said if len(said) <= 200 else f"{said[:200]}..."
