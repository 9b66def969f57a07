"""Admission: how many tickets may start now.

Groups that cannot teach are replaced, so more tickets are drawn than groups are trained on:

    missing groups x oversample ──▶ tickets of a wave ──▶ still missing? another wave, up to `waves`

Beside training there are no waves: tickets start whenever groups for the next `max_staleness` + 1
steps are neither waiting nor under way, within the number that as many waves would have drawn. They
start several at once, because an engine prefills many prompts at the cost of a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

OnStale: TypeAlias = Literal["drop", "requeue"]
"""what becomes of a ticket whose rollouts took too long to be trained on; requeue: rolled again"""

_PARTS_OF_A_STEP = 4
"""in which tickets start, while others are under way"""
_MOST_AT_ONCE = 8
"""tickets that are worth waiting for to start them together: their turns fill a few requests"""


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

    def in_turns(self, waiting: int, waves: int) -> int:
        """How many may start, when `waiting` groups wait to be trained on and `waves` waves were
        rolled since the last update."""
        return self._wave(waiting) if waves < self.waves else 0

    def beside_training(
        self,
        *,
        waiting: int,
        rolling: int,
        drawn: int,
        trained: int,
        steps: int,
        is_training: bool = False,
    ) -> int:
        """How many may start, when `rolling` tickets are under way, `drawn` were drawn since the
        stage began, and `trained` of its `steps` steps are done. `is_training`: the groups of the
        next step are taken already, so that what starts now is a version older at its turn."""
        ahead = min(self.max_staleness + 1, steps - trained) - is_training
        if ahead < 1:
            return 0
        of_next_step = max(0, self.groups_per_step - waiting)
        of_later_steps = max(0, ahead * self.groups_per_step - waiting) - of_next_step
        wanted = self._wave(waiting) + of_later_steps
        limit = (trained + is_training + ahead) * self.waves * self._wave(0)
        count = max(0, min(wanted - rolling, limit - drawn))
        together = min(self.groups_per_step / _PARTS_OF_A_STEP, _MOST_AT_ONCE, limit - drawn)
        return 0 if rolling and count < together else count

    def _wave(self, waiting: int) -> int:
        missing = max(0, self.groups_per_step - waiting)
        return math.ceil(missing * self.oversample)
