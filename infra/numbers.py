"""Numbers of any library as Python's: of numpy, torch, decimal, and truth values; and as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DIGITS = 15
"""of a float: more than these are rounding, as in 0.30000000000000004"""


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


def value_text(value: str | float | bool | None) -> str:
    """How a value of JSON is written in an answer: `42`, not `42.0`; `true`, not `True`."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "null"
    if not isinstance(value, float):
        return str(value)
    if value.is_integer() and abs(value) < 10**_DIGITS:
        return str(int(value))
    return f"{value:.{_DIGITS}g}"
