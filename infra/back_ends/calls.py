"""When two calls of a function are the same call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function by name, with its arguments as JSON values."""

    name: str
    arguments: Mapping[str, Any]


def is_same_call(one: Call, other: Call, optional: Mapping[str, object]) -> bool:
    """Whether both name one function with equal values, in any order; an argument in `optional`
    that is left out has the value given there."""
    first, second = ({**optional, **call.arguments} for call in (one, other))
    return one.name == other.name and is_same_value(first, second)


def is_same_value(one: Any, other: Any) -> bool:
    """Equality of JSON values: `3` is `3.0` but not `true` or `"3"`; keys have no order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_value(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_value, one, other))
    return bool(one == other)
