"""JSON as it is written: whole numbers keep all their digits, and no key is lost.

The standard library reads numbers of any size, but also what is no JSON (NaN, half an emoji).
orjson refuses that, but makes floats of whole numbers of more than 64 bits, and refuses to write
them. Both keep the last of two equal keys without a word.

Beside it: numbers of any library (numpy, torch, decimal) as Python's, and what a JSON schema says
of a function's parameters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NoReturn, TypeAlias, cast

import orjson

_DIGITS = 15
"""of a float: more than these are rounding, as in 0.30000000000000004"""
ParameterKind: TypeAlias = Literal[
    "string", "number", "integer", "boolean", "array", "object", "any"
]
_KINDS: Mapping[str, ParameterKind] = {
    "string": "string",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
    "array": "array",
    "object": "object",
}
_KIND_OF_VALUE: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
    type(None): "null",
}  # fmt: skip
_SHORT = {*_KINDS, "str", "int", "float", "bool", "list", "dict", "any"}
"""how a type is written without a schema"""
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
"""what holds a schema for each name"""
_ELSEWHERE = ("allOf", "anyOf", "oneOf", "$ref")
"""what may name parameters in a place where nothing here looks for them"""
_OF_VALUES = ("default", "const", "enum", "examples", "example")
"""what holds values, of which null is one"""
_OF_SCHEMAS = {*_OF_NAMES, *_ELSEWHERE, "additionalProperties", "items", "not", "if"}
_DEEPEST = 64
"""a schema that is nested deeper is kept as it is"""


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
    """Say why a value of any depth is no JSON; empty if it is."""
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
            if fault := json_fault(key):
                return fault
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
        seen = set[str]()
        raise DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def strict_json(text: str) -> Any:
    """Return the value that a text is. Raises ValueError as `json_at` does."""
    value, end = json_at(text, 0)
    if rest := text[end:].strip():
        raise ValueError(f"{rest[:80]!r} follows the JSON")
    return value


def json_at(text: str, begin: int) -> tuple[Any, int]:
    """Return the value that begins there or behind the white space there, and where it ends. Raises
    ValueError for what is no JSON, is nested too deeply, or has numbers beyond those of a float or
    half of a surrogate pair; DuplicateKey for a key that stands twice."""
    space = _SPACE.match(text, begin)
    try:
        value, end = _STRICT.raw_decode(text, space.end() if space else begin)
        if "\\u" in text[begin:end]:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if end - begin > 2 * _MOST_NESTED and _is_deep(value):
        raise ValueError("it is nested too deeply")
    return value, end


_MOST_NESTED = 200
"""lists and objects in one another; whoever writes the value again must be able to, from any depth
of calls, and orjson takes 254"""


def _is_deep(value: Any) -> bool:
    inner: list[Any] = [value]
    for _ in range(_MOST_NESTED + 1):
        inner = [part for each in inner for part in _parts(each)]
        if not inner:
            return False
    return True


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


_SPACE = re.compile(r"\s*")
_MOST_DIGITS = 300
"""of a whole number: more have no place in a float, as which many read it"""


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    if math.isinf(value := float(digits)):
        raise ValueError(f"{digits} is beyond the numbers of a float")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_whole, parse_float=_finite
)


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


_REASON = 2000


def reason_text(text: str) -> str:
    """Return a reason as records keep it: a program, a server or a part may say megabytes."""
    return writable(text if len(text) <= _REASON else f"{text[:_REASON]}...")


def number_of(value: object) -> float | None:
    """The value as a float; None for what is no single number, such as text, None or a vector."""
    given: Any = value
    try:
        if callable(getattr(given, "item", None)):  # of numpy and torch: also an array of one
            given = given.item()
        return None if isinstance(given, str | bytes | bytearray) else float(given)
    except Exception:  # a value may be of any class, whose __float__ raises anything
        return None


def numbers_of(values: Mapping[str, object]) -> tuple[dict[str, float], dict[str, str]]:
    """The numbers among named values, and the types of all others."""
    numbers: dict[str, float] = {}
    others: dict[str, str] = {}
    for name, value in values.items():
        number = number_of(value)
        if number is None:
            others[str(name)] = type(value).__name__
        else:
            numbers[str(name)] = number
    return numbers, others


def is_no_answer(value: Any) -> bool:
    """Say whether it is nothing to compare: null, NaN, a blank text, an empty object, a list of
    nothing else; or a list with a blank text, as an empty reply would be right then."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return all(map(is_no_answer, items)) or any(
            isinstance(x, str) and not x.strip() for x in items
        )
    return value is None or value == {} or value != value


def last_match(pattern: re.Pattern[str], text: str) -> str:
    """Return the last match of a pattern, or its group 1 if it has one, without white space at its
    ends. A match of nothing is none, as `.*` has one at every end. Empty where there is none."""
    found = (match.group(min(1, pattern.groups)) or "" for match in pattern.finditer(text))
    return next(filter(None, (each.strip() for each in reversed([*found]))), "")


def value_text(value: str | float | bool | None) -> str:
    """Write a value of JSON as it is written in an answer: `42`, not `42.0`; `true`, not `True`."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "null"
    if not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < 10**_DIGITS:
        return str(int(value))
    return f"{value:.{_DIGITS}g}"


def parameters_of(schema: Any) -> tuple[dict[str, ParameterKind], tuple[str, ...]]:
    """The JSON type of each parameter, or `any`, and those that a call must have."""
    properties = _properties(schema)
    needed = _mapping(schema).get("required")
    kinds: dict[str, ParameterKind] = {str(n): _kind(each) for n, each in properties.items()}
    required = cast("list[Any]", needed) if isinstance(needed, list) else []
    return kinds, tuple(str(name) for name in required)


def kind_of_others(function: Any) -> ParameterKind | None:
    """The JSON type of parameters that the schema of a function does not name; None where it allows
    none. A schema that names its parameters allows others only where it says so; one without any
    names allows all, unless it is empty or says that there are none."""
    given = _mapping(_mapping(function).get("parameters"))
    others = given.get("additionalProperties")
    if isinstance(others, bool):
        return "any" if others else None
    if isinstance(others, dict):
        return _kind(others)
    if given.get("patternProperties") or any(given.get(name) for name in _ELSEWHERE):
        return "any"
    return "any" if given.get("type") == "object" and "properties" not in given else None


def schema_fault(function: Mapping[str, Any]) -> str:
    """Say what keeps a function's `parameters` from naming its arguments; empty for nothing.
    No call would fit such a function."""
    given = _mapping(function.get("parameters"))
    properties, needed, kind = (given.get(name) for name in ("properties", "required", "type"))
    if isinstance(kind, str) and kind in _KINDS and kind != "object":
        return f"its parameters are of the type {kind}; a call has an object of them"
    if properties is not None and not isinstance(properties, dict):
        return "its `properties` are no object that has a schema for each name"
    if not isinstance(needed, list | None):
        return "its `required` is no list of names"
    loose = [name for name, each in given.items() if isinstance(each, str) and each in _SHORT]
    if "properties" not in given and loose and "type" not in given:
        return (
            f"its parameters are no JSON schema: write the type of {loose[0]} as `properties:"
            f" {{{loose[0]}: {{type: ...}}}}`"
        )
    kinds, required = parameters_of(given)
    unknown = [name for name in required if name not in kinds]
    if unknown and kind_of_others(function) is None:
        return f"it requires {', '.join(unknown)}, which is none of its `properties`"
    return ""


def _properties(schema: Any) -> Mapping[str, Any]:
    given = _mapping(schema)
    if "properties" in given:
        return _mapping(given["properties"])
    # Some files hold the parameters by name, without a schema around them.
    are_named = all(isinstance(each, dict) for each in given.values())
    return given if are_named and not given.keys() & _OF_SCHEMAS else {}


def _kind(schema: Any) -> ParameterKind:
    given = _mapping(schema)
    kind = given.get("type")
    if given.get("nullable") is True or not isinstance(kind, str):
        return "any"
    return _KINDS.get(kind, "any")


def kinds_of(function: Any, name: str) -> frozenset[str]:
    """The JSON types that a function's schema allows a parameter, `null` among them; empty for any,
    or where nothing says it."""
    own = _properties(_mapping(function).get("parameters")).get(name)
    return _kinds(own) if isinstance(own, dict) else frozenset()


def _kinds(schema: Any, depth: int = 0) -> frozenset[str]:
    given = _mapping(schema)
    said = given.get("type")
    written = cast("list[Any]", said) if isinstance(said, list) else [said]
    found = {str(each) for each in written if each in _KINDS or each == "null"}
    if said is not None and len(found) < len(written):
        return frozenset()
    if values := given.get("enum") or ([given["const"]] if "const" in given else []):
        found = found or {_KIND_OF_VALUE.get(type(value), "") for value in values}
    for choices in (given.get(word) for word in ("anyOf", "oneOf")):
        if isinstance(choices, list) and not found:
            each = [_kinds(choice, depth + 1) for choice in choices if depth < _DEEPEST]
            found = {*frozenset[str]().union(*each)} if all(each) else set[str]()
    if not found or "" in found:
        return frozenset()
    return frozenset(found | ({"null"} if given.get("nullable") is True else set()))


def schema_without_nulls(schema: Any, depth: int = 0) -> Any:
    """Return a schema without the nulls that none may have; those among its values stay."""
    if depth > _DEEPEST:
        return schema
    if isinstance(schema, list):
        items = cast("list[Any]", schema)
        return [schema_without_nulls(each, depth + 1) for each in items if each is not None]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", schema).items():
        if name in _OF_VALUES:
            kept[name] = value
        elif name in _OF_NAMES and isinstance(value, dict):
            each = cast("dict[str, Any]", value).items()
            kept[name] = {n: schema_without_nulls(s, depth + 2) for n, s in each if s is not None}
        elif value is not None:
            kept[name] = schema_without_nulls(value, depth + 1)
    return kept


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
