"""A recipe's options as fields of one of Megatron-core's configuration classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from infra.errors import InputError

T = TypeVar("T")


def filled(kind: type[T], options: Mapping[str, Any], **ours: Any) -> T:
    """A `kind` with our fields, and those of the options that it has. InputError if it refuses."""
    fields: Any = dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    names = {field.name for field in fields}
    given = {name: value for name, value in options.items() if name in names}
    try:
        return kind(**(ours | given))
    except (ValueError, AssertionError, TypeError, RuntimeError) as error:
        raise InputError(
            f"Megatron-core refuses trainer.megatron {dict(options)}: {error}"
        ) from error
