"""Numbers of any library as Python's: of numpy, torch, decimal, and truth values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number_of(value: object) -> float | None:
    """The value as a float; None for what is no single number, such as text, None or a vector."""
    if isinstance(value, str | bytes | bytearray):
        return None  # float() would read text
    given: Any = value
    try:
        return float(given)
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
