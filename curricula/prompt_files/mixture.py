"""Whose turn it is among sources: each next problem is of the one that lags furthest behind its
weight."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Mixture:
    """Turns by position, remembered as far as they were asked for.

    Example: Mixture([3.0, 1.0]): positions 0 to 3 are of sources 0, 0, 0, 1, and so on.
    """

    def __init__(self, weights: Sequence[float], most: Sequence[int] | None = None) -> None:
        """`most`: how often each source can have a turn; None: without end."""
        self._weights, self._most = list(weights), most
        self._taken = [0] * len(self._weights)
        self._sources, self._ordinals = array("H"), array("q")

    def turn(self, position: int) -> tuple[int, int] | None:
        """The source of a position, and how many turns it had before; None after the last."""
        while len(self._sources) <= position:
            ready = [
                ((taken + 1) / weight, number)
                for number, (taken, weight) in enumerate(
                    zip(self._taken, self._weights, strict=True)
                )
                if self._most is None or taken < self._most[number]
            ]
            if not ready:
                return None
            number = min(ready)[1]
            self._sources.append(number)
            self._ordinals.append(self._taken[number])
            self._taken[number] += 1
        return self._sources[position], self._ordinals[position]
