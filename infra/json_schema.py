"""What a JSON schema says of a function's parameters.

A table gives every object the fields of all others, with null for those that it lacks: a file that
was one shows parameters that no tool has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

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


def parameters_of(schema: Any) -> tuple[dict[str, ParameterKind], tuple[str, ...]]:
    """The JSON type of each parameter, or `any`, and those that a call must have."""
    properties = _properties(schema)
    needed = _object(schema).get("required")
    kinds: dict[str, ParameterKind] = {str(n): _kind(each) for n, each in properties.items()}
    required = cast("list[Any]", needed) if isinstance(needed, list) else []
    return kinds, tuple(str(name) for name in required)


def kind_of_others(function: Any) -> ParameterKind | None:
    """The JSON type of parameters that the schema of a function does not name; None where it allows
    none. A schema that names its parameters allows others only where it says so; one without any
    names allows all, unless it is empty or says that there are none."""
    given = _object(_object(function).get("parameters"))
    others = given.get("additionalProperties")
    if isinstance(others, bool):
        return "any" if others else None
    if isinstance(others, dict):
        return _kind(others)
    if given.get("patternProperties") or any(given.get(name) for name in _ELSEWHERE):
        return "any"
    return "any" if given.get("type") == "object" and "properties" not in given else None


def schema_fault(function: Mapping[str, Any]) -> str:
    """What keeps a function's `parameters` from naming what it is called with; empty for nothing.
    No call would fit such a function."""
    given = _object(function.get("parameters"))
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
    given = _object(schema)
    if "properties" in given:
        return _object(given["properties"])
    # Some files hold the parameters by name, without a schema around them.
    are_named = all(isinstance(each, dict) for each in given.values())
    return given if are_named and not given.keys() & _OF_SCHEMAS else {}


def _kind(schema: Any) -> ParameterKind:
    given = _object(schema)
    kind = given.get("type")
    if given.get("nullable") is True or not isinstance(kind, str):
        return "any"
    return _KINDS.get(kind, "any")


def schema_without_nulls(schema: Any, depth: int = 0) -> Any:
    """A schema without the nulls that none may have; those among its values stay."""
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


def _object(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
