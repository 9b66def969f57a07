"""A soft limit on a reply's length; it shapes training and is not an outcome."""

from __future__ import annotations

from engines.types import Transcript, Verdict
from infra.errors import InputError


class Length:
    """From -1 to 0: 0 up to `budget - margin` tokens, then falling linearly to -1 at `budget`.

    A soft warning before the hard limit, so that a reply learns to end in time.
    """

    def __init__(self, *, budget: int, margin: int) -> None:
        if not 0 < margin <= budget:
            raise InputError(f"`margin` must be between 1 and `budget` ({budget}), not {margin!r}.")
        self._budget, self._margin = budget, margin

    async def __call__(self, transcript: Transcript) -> Verdict:
        excess = max(0, transcript.num_tokens - (self._budget - self._margin))
        return Verdict(-min(1.0, excess / self._margin), {"excess": float(excess)})
