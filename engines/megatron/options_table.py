"""Makes options.json, the table of TransformerConfig's fields, from the installed Megatron-core.

Run `python -m engines.megatron.options_table` after changing Megatron's version; a test compares
the committed table with the real class.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("options.json")

_JSON_KINDS = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    tuple: "list",
    dict: "dict",
    type(None): "null",
}


def describe_options() -> dict[str, list[str]]:
    """Each public field with the JSON kinds it takes, e.g. {"recompute_num_layers": ["int",
    "null"]}; the values of a Literal are written `=value`; no kind: not a JSON value."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    hints = typing.get_type_hints(TransformerConfig)
    names = sorted(f.name for f in dataclasses.fields(TransformerConfig) if f.init)
    return {name: sorted(_kinds(hints[name])) for name in names if not name.startswith("_")}


def _kinds(hint: Any) -> set[str]:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {"null" if value is None else f"={value}" for value in typing.get_args(hint)}
    if origin in (typing.Union, types.UnionType):
        return set[str]().union(*(_kinds(part) for part in typing.get_args(hint)))
    kind = _JSON_KINDS.get(origin or hint)
    return {kind} if kind else set()


if __name__ == "__main__":
    TABLE.write_text(json.dumps(describe_options(), indent=1) + "\n")
