"""The arguments of a tool call: what a text stands for, and whether the tool takes it.

A parameter may have several types, as optional ones do (`string` or `null`). Some forms write texts
without quotes: a parameter that is a text, or none, gets what is written, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engines.types import Json, Tool, ToolCall
from infra.json_text import kind_of_others, kinds_of, strict_json

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""as some templates write JSON's"""


class CallError(Exception):
    """A call breaks its form; the message is the reason."""


def unquoted(
    tool: Tool, written: Sequence[tuple[str, str]], words: Mapping[str, str] | None = None
) -> ToolCall:
    """Return the call whose texts were written without quotes, and other values as JSON; `words`
    are those that stand for JSON's. Raises CallError."""
    arguments: dict[str, Json] = {}
    for key, text in written:
        if key in arguments:
            raise CallError(f"argument {short(key)[1:-1]} of {tool.name} is given twice")
        kinds = _kinds_of(tool, key)
        if kinds is None:
            raise CallError(f"{tool.name} has no parameter {short(key)}")
        arguments[key] = _value(tool, key, kinds, text, (words or {}).get(text, text))
    return checked(tool, arguments)


def _value(tool: Tool, key: str, kinds: frozenset[str], text: str, said: str) -> Json:
    """Return what a text stands for; `said` is the text with JSON's words in it."""
    if kinds and kinds <= {"string", "null"}:
        return None if said == "null" and "null" in kinds else text
    try:
        value = strict_json(said)
    except ValueError as error:
        if not kinds or "string" in kinds:
            return text
        what = f"argument {key} of {tool.name} is not a JSON {_named(kinds)}"
        raise CallError(f"{what}: {short(text)}") from error
    return text if "string" in kinds and not _is_a(kinds, value) else value


def checked(tool: Tool, arguments: dict[str, Json]) -> ToolCall:
    """Return the call if the tool takes these arguments. Raises CallError."""
    for key, value in arguments.items():
        kinds = _kinds_of(tool, key)
        if kinds is None:
            raise CallError(f"{tool.name} has no parameter {short(key)}")
        if not _is_a(kinds, value):
            raise CallError(f"argument {key} of {tool.name} is not a JSON {_named(kinds)}")
    missing = [key for key in tool.required if key not in arguments]
    if missing:
        raise CallError(f"{tool.name} lacks the argument {', '.join(missing)}")
    return ToolCall(tool.name, arguments)


def _kinds_of(tool: Tool, key: str) -> frozenset[str] | None:
    """Return the JSON types of an argument, empty for any; None for one that the tool does not
    take."""
    kind = tool.parameters.get(key) or kind_of_others(tool.schema)
    if kind is None:
        return None
    return kinds_of(tool.schema, key) if kind == "any" else frozenset({kind})


def _is_a(kinds: frozenset[str], value: Json) -> bool:
    if not kinds:
        return True
    if isinstance(value, bool):  # bool is an int in Python, not in JSON
        return "boolean" in kinds
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "number": (int, float),
        "integer": (int,),
        "array": (list,),
        "object": (dict,),
        "boolean": (),
        "null": (type(None),),
    }
    return any(isinstance(value, types[kind]) for kind in kinds)


def _named(kinds: frozenset[str]) -> str:
    return " or ".join(sorted(kinds))


def short(text: str, most: int = 40) -> str:
    """Return a text as a message shows it."""
    return repr(text if len(text) <= most else text[:most] + "...")
