"""Whether a value that a recipe passes through to an engine is of a kind that its field takes.

A table has the kinds of each field by name: "int", "str", ..., "=literal"; see `options.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from infra.errors import InputError


def unknown_option(where: str, name: str, known: Collection[str], of_what: str) -> InputError:
    """Example: "trainer.megatron.num_layer is not a field of ...; did you mean num_layers?"."""
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return InputError(f"{where} is not {of_what}{hint}")


def check_kind(where: str, value: Any, kinds: Iterable[str]) -> None:
    """Raise InputError if `value` is of none of the kinds."""
    allowed = list(kinds)
    if not any(_is_kind(value, kind) for kind in allowed):
        raise InputError(f"{where} takes {' or '.join(allowed)}, got {value!r}")


def _is_kind(value: Any, kind: str) -> bool:
    if kind.startswith("="):
        return value == kind[1:]
    if kind == "null":
        return value is None
    if isinstance(value, bool):  # in Python a bool is an int; in a recipe it is not
        return kind == "bool"
    types: dict[str, Any] = {"int": int, "float": int | float, "str": str, "list": list}
    return isinstance(value, types.get(kind, dict))
