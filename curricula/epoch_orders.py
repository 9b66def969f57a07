"""In which order each epoch draws the rows of a file or a task."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Hashable

_KEPT = 2
"""orders of the same rows: at an epoch's edge rollouts of both epochs are under way"""


class EpochOrders:
    """Remembers those that were asked for last: one of a million rows takes a second to make."""

    def __init__(self) -> None:
        self._orders: defaultdict[Hashable, OrderedDict[str, array[int]]]
        self._orders = defaultdict(OrderedDict)

    def of(self, rows: Hashable, count: int, seed: str) -> array[int]:
        """The places of `count` rows in the order that follows from the seed; `rows` says which
        rows they are."""
        orders = self._orders[rows]
        if seed not in orders:
            orders[seed] = array("q", random.Random(seed).sample(range(count), count))
        orders.move_to_end(seed)
        if len(orders) > _KEPT:
            orders.popitem(last=False)
        return orders[seed]
