"""Makes options.json, the table of what a recipe may pass to Megatron-core, from the installed one.

Run `python -m engines.megatron.options_table` after changing Megatron's version; a test compares
the committed table with the real class.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from infra.errors import InputError

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
    "null"]}; the values of a Literal are written `=value`; no kind: not a JSON value. A name that
    several classes have is one option for all of them."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    kinds: dict[str, set[str]] = {}
    for config in (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig):
        hints = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            if field.init and not field.name.startswith("_"):
                kinds.setdefault(field.name, set()).update(_kinds(hints[field.name]))
                if field.default is None:  # some say `int = None`
                    kinds[field.name].add("null")
    return {name: sorted(found) for name, found in sorted(kinds.items())}


def _kinds(hint: Any) -> set[str]:
    import torch

    if hint is torch.dtype:
        return {"=fp32", "=bf16", "=fp16", "=fp8"}  # the names of Megatron-LM's command line
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return {"null" if value is None else f"={value}" for value in typing.get_args(hint)}
    if origin in (typing.Union, types.UnionType):
        return set[str]().union(*(_kinds(part) for part in typing.get_args(hint)))
    kind = _JSON_KINDS.get(origin or hint)
    return {kind} if kind else set()


T = TypeVar("T")


def filled(kind: type[T], options: Mapping[str, Any], **ours: Any) -> T:
    """A `kind` with our fields, and those of the options that it has. InputError if it refuses."""
    fields: Any = dataclasses.fields(kind)  # pyrefly: ignore[bad-argument-type]
    names = {field.name for field in fields}
    given = {name: value for name, value in options.items() if name in names}
    try:
        return kind(**(ours | given))
    except (ValueError, AssertionError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Megatron-core refuses trainer.megatron {dict(options)}: {error}"
        ) from error


if __name__ == "__main__":
    TABLE.write_text(json.dumps(describe_options(), indent=1) + "\n")
