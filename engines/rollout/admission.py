"""Admission: how many tickets may start now.

Groups that cannot teach are replaced, so more tickets are drawn than groups are trained on:

    missing groups x oversample ──▶ tickets of a wave ──▶ still missing? another wave, up to `waves`

With `max_staleness` k the groups of k further steps are sampled ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admission:
    """Example: Admission(groups_per_step=4, oversample=1.5, waves=2): 6 tickets, then 3 for 2
    groups that are still missing."""

    groups_per_step: int
    oversample: float = 1.0
    """tickets drawn divided by groups that are missing"""
    waves: int = 1
    """most waves before an update; then it takes what there is"""
    max_staleness: int = 0

    def tickets(self, waiting: int, steps_left: int, waves: int) -> int:
        """How many may start, when `waiting` groups wait to be trained on, `steps_left` steps are
        to come and `waves` waves were rolled since the last update."""
        if waves >= self.waves:
            return 0
        steps = min(self.max_staleness + 1, steps_left)
        missing = max(0, steps * self.groups_per_step - waiting)
        return math.ceil(missing * self.oversample)
