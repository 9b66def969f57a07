"""Weighted: each domain has a fixed share of the tickets."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from engines.rollout.sources.data_source import Pick
from infra.config import require_comparable
from infra.errors import InputError


class Weighted:
    """A ticket's domain is drawn by its number alone.

    Example: weights {"reasoning": 3, "agent": 1}: three of four tickets are of `reasoning`.
    """

    def __init__(self, weights: Mapping[str, float], domains: Sequence[str], seed: int) -> None:
        if set(weights) != set(domains):
            raise InputError(
                f"weights are given to {', '.join(sorted(weights)) or 'none'}; the stage's domains"
                f" are {', '.join(sorted(domains))}; give each one a weight"
            )
        if min(weights.values()) < 0 or not any(weights.values()):
            raise InputError(f"weights {dict(weights)}: none may be negative, and not all may be 0")
        try:
            require_comparable(weights.values())
        except ValueError as error:
            raise InputError(str(error)) from None
        self._names = sorted(weights)
        self._weights = [float(weights[name]) for name in self._names]
        self._seed = seed

    def pick(self, number: int) -> Pick:
        draw = random.Random(f"weighted/{self._seed}/{number}")
        return Pick(draw.choices(self._names, self._weights)[0])
