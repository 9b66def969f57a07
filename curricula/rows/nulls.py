"""Nulls that nobody wrote: a table gives every object the fields of all of them, and null to those
that it does not have. `datasets` writes them into JSONL as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from engines.types import Tool
from infra.data_files.rows import without_nulls


def without_filled_nulls(value: Any, tools: Sequence[Tool]) -> Any:
    """Messages as a row has them, without null arguments in their calls, except where the tool
    declares the parameter and lets it be null. Arguments that are JSON text stay as they are."""
    parameters = {tool.name: _parameters(tool.schema or {}) for tool in tools}
    return _cleaned(value, parameters)


def _cleaned(value: Any, parameters: Mapping[str, Mapping[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_cleaned(each, parameters) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    value = cast("dict[str, Any]", value)
    if all(type(each) is str for each in value.values()):  # as in most messages
        return value
    kept = {
        key: each if isinstance(each, str) else _cleaned(each, parameters)
        for key, each in value.items()
    }
    if isinstance(value.get("arguments"), dict):
        declared = parameters.get(str(value.get("name")), {})
        kept["arguments"] = {
            key: without_nulls(each)
            for key, each in value["arguments"].items()
            if each is not None or _may_be_null(declared.get(key))
        }
    return kept


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    described = function.get("parameters")
    found = described.get("properties") if isinstance(described, Mapping) else None
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _may_be_null(schema: Any) -> bool:
    """Whether a JSON schema says so in words of its own."""
    if not isinstance(schema, Mapping):
        return False
    schema = cast("Mapping[str, Any]", schema)
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds) or schema.get("nullable"):
        return True
    if None in (schema.get("enum") or ()):
        return True
    choices = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(map(_may_be_null, choices))
