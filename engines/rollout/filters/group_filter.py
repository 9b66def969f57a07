"""What a group filter is: it says which groups a step may train on."""

from __future__ import annotations

from typing import Protocol

from engines.types import Group


class GroupFilter(Protocol):
    """Asked once a group, after its rollouts are judged. Its answer depends on the group alone."""

    def keep(self, group: Group) -> bool | str:
        """True: it may be trained on. False, or a short reason by which it is counted: it is
        dropped. `group.samples` may hold failed and aborted ones, which are not trained on."""
        ...
