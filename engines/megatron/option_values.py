"""A recipe's options as fields of one of Megatron-core's configuration classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from infra.errors import InputError

MEGATRON_DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.uint8,
}
"""what a recipe calls a type, under the names of Megatron-LM's command line"""
T = TypeVar("T")


def filled(kind: type[T], options: Mapping[str, Any], **ours: Any) -> T:
    """A `kind` with our fields, and those of the options that it has. InputError if it refuses."""
    fields: Any = dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    types = {field.name: str(field.type) for field in fields}
    given = {
        name: MEGATRON_DTYPES[value] if "dtype" in types[name] and value else value
        for name, value in options.items()
        if name in types
    }
    try:
        return kind(**(ours | given))
    except (ValueError, AssertionError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Megatron-core refuses trainer.megatron {dict(options)}: {error}"
        ) from error
