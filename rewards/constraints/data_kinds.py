"""Constraints on replies that are data: JSON, CSV, YAML."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from infra.errors import InputError
from rewards.constraints.bounds import NONE, bounded
from rewards.constraints.layout_kinds import code_apart, only_code_block

_LONGEST_YAML = 20_000
"""characters; its parser needs a second for 50,000, and judges wait"""
_DEEPEST_YAML = 50
"""brackets that it opens"""
_NAMING = ("properties", "$defs", "definitions", "dependentSchemas")
"""what of a schema has names of a person's own as its keys"""
_VALUES = ("const", "enum", "default", "examples", "required", "dependentRequired")
"""what of a schema holds no schema"""
_READ = (
    {*Draft202012Validator.VALIDATORS, *_NAMING, *_VALUES}
    | {"$schema", "$id", "$comment", "title", "description", "if", "then", "else"}
) - {
    *("format", "pattern", "patternProperties", "uniqueItems", "$dynamicRef"),
}
"""words of a schema; formats would not be checked, the others could take for ever"""


def is_json(reply: str) -> bool:
    """The whole reply is one JSON value other than `null`, without duplicate keys."""
    return _parse(reply) is not None


def fenced_json(reply: str) -> bool:
    """The whole reply is one JSON value, in a fence of Markdown or not."""
    _, blocks = code_apart(reply)
    is_fenced = only_code_block(reply) and blocks[0][0].lower() in ("", "json")
    return is_json(blocks[0][1] if is_fenced else reply)


def json_keys(reply: str, *, keys: Sequence[str]) -> bool:
    """The reply is a JSON object with these keys and no others."""
    value = _parse(reply)
    return isinstance(value, dict) and set(value) == set(keys)


@bounded
def json_list(reply: str) -> float:
    """How many values the JSON array that the reply is has; for another reply no bound holds."""
    value = _parse(reply)
    return len(value) if isinstance(value, list) else NONE


def json_schema(reply: str, *, schema: Mapping[str, Any]) -> bool:
    """The reply is a JSON value that the schema allows. Raises InputError for no schema."""
    for word in _words_of_schema(schema):
        if word not in _READ:
            raise InputError(f"json_schema: `{word}` is not read; leave it out")
    try:
        Draft202012Validator.check_schema(schema)
        # With a registry of its own it fetches nothing that a schema refers to.
        allows = Draft202012Validator(schema, registry=Registry()).is_valid
        value = _parse(reply)
        return value is not None and bool(allows(value))
    except (RecursionError, OverflowError):  # of values that no schema needs
        return False
    except (SchemaError, Unresolvable) as error:
        raise InputError(f"json_schema: {str(error).splitlines()[0]}") from None


def _words_of_schema(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for word, inner in schema.items():
            yield str(word)
            if word in _NAMING and isinstance(inner, Mapping):
                # Their keys are names of a person's own.
                for each in inner.values():
                    yield from _words_of_schema(each)
            elif word not in _VALUES:
                yield from _words_of_schema(inner)
    elif isinstance(schema, list):
        for each in schema:
            yield from _words_of_schema(each)


def csv_table(reply: str, *, columns: int | None = None, rows: int | None = None) -> bool:
    """The reply is comma-separated, each row as wide as the first, which is the head."""
    try:
        found = [row for row in csv.reader(io.StringIO(reply.strip()), strict=True) if row]
    except csv.Error:  # a quotation mark that is not closed, or a field of over 100,000 characters
        return False
    if len(found) < 2 or len(found[0]) < 2 or len({len(row) for row in found}) > 1:
        return False
    return (columns is None or len(found[0]) == columns) and (
        rows is None or len(found) - 1 == rows
    )


def yaml_keys(reply: str, *, keys: Sequence[str]) -> bool:
    """The reply is a YAML mapping with these keys, each once, and no others."""
    if len(reply) > _LONGEST_YAML or reply.count("[") + reply.count("{") > _DEEPEST_YAML:
        return False
    try:
        node = yaml.compose(reply, Loader=yaml.BaseLoader)  # makes no values of what is written
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    if not isinstance(node, yaml.MappingNode):
        return False
    # A key that is a list has no text: with aliases in it that could have any length.
    found = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    return len(found) == len(node.value) and sorted(found) == sorted(keys)


def _parse(reply: str) -> Any:
    """The JSON value, or None (also for a bare `null`, which answers nothing)."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("duplicate key")
        return dict(pairs)

    def no_number(name: str) -> Any:
        raise ValueError(f"{name} is not JSON, although Python's parser takes it")

    try:
        return json.loads(reply, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError):
        return None


DATA_KINDS: Mapping[str, Callable[..., bool]] = {
    "json": is_json,
    **{
        check.__name__: check
        for check in (fenced_json, json_keys, json_list, json_schema, csv_table, yaml_keys)
    },
}
