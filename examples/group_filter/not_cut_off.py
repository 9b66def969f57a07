"""A group filter of your own: groups of which too many rollouts were cut off teach nothing.

A rollout that was cut off has outcome 0, whatever it would have said. In a group of such rollouts
the few short ones win for being short.
"""

from __future__ import annotations

from engines.types import Group, Status, one_per_rollout


class NotCutOff:
    """At most a share `most` of a group's rollouts ran out of tokens, and rewards differ."""

    def __init__(self, most: float = 0.5) -> None:
        self.most = most

    def keep(self, group: Group) -> bool | str:
        rollouts = one_per_rollout(group.samples)
        cut_off = sum(rollout.status is Status.TRUNCATED for rollout in rollouts)
        if cut_off > self.most * len(rollouts):
            return "cut_off"
        return group.has_signal or "equal_rewards"
