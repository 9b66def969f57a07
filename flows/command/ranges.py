"""A range of numbers as an option has it: `7`, `5:9`, `5:` or `:9`, ends included."""

from __future__ import annotations

import math
from dataclasses import dataclass

from infra.errors import InputError


@dataclass(frozen=True, slots=True)
class Range:
    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, option: str, text: str) -> Range | None:
        """None for an empty text. Raises InputError, naming the option."""
        if not text:
            return None
        first, colon, last = text.partition(":")
        try:
            low = float(first) if first else -math.inf
            high = (float(last) if last else math.inf) if colon else low
        except ValueError:
            low, high = math.nan, math.nan
        if not low <= high or text == ":":
            raise InputError(f"{option} {text}: give a number or a range: 7, 5:9, 5: or :9")
        return cls(low, high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high
