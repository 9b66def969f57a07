"""A buffer of your own: a step takes the groups whose rewards differ most, and some come again.

In every step one group of several may be one that was trained on before: a group whose rewards
differ widely still has something to teach while it is not too old.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.rollout.buffers import WaitingGroup


class WidestFirst:
    """At most a share `again` of a step was trained on before, each group in `times` steps."""

    def __init__(self, times: int = 2, again: float = 0.5) -> None:
        self.times = times
        self.again = again

    def take(self, waiting: Sequence[WaitingGroup], count: int, seed: int) -> Sequence[int]:
        ranked = sorted(waiting, key=lambda group: (-_spread(group), group.ticket))
        old = [group for group in ranked if group.times_taken][: int(self.again * count)]
        new = [group for group in ranked if not group.times_taken]
        chosen = [*new[: count - len(old)], *old]
        return sorted(group.ticket for group in chosen)

    def keeps(self, taken: WaitingGroup) -> bool:
        return taken.times_taken < self.times


def _spread(group: WaitingGroup) -> float:
    return max(group.rewards, default=0.0) - min(group.rewards, default=0.0)
