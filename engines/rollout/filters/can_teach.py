"""The filter of every recipe that names none: groups of equal rewards teach nothing."""

from __future__ import annotations

from engines.types import Group


class CanTeach:
    """Rewards differ; or anything, where the advantage does not compare rewards in a group."""

    def __init__(self, needs_spread: bool) -> None:
        self._needs_spread = needs_spread

    def keep(self, group: Group) -> bool | str:
        return not self._needs_spread or group.has_signal or "equal_rewards"
