"""A filter's verdict on a group: ours are asked at once, a user's own in a process of its own.

A filter that raises, hangs or answers nonsense drops the group that it was asked about; the run
goes on, and the reason is counted and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engines.rollout.filters.group_filter import GroupFilter
from engines.types import Group
from infra.processes.part_process import PartFailed, PartProcess, PartRaised

BUILD = "engines.rollout.filters.registry:build"
_LONGEST = 40
"""characters of a reason as it is counted"""


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a group is not trained on."""

    reason: str
    """as it is counted: letters, digits and `_`"""
    fault: str = ""
    """what the filter did wrong, if that is why"""


class AskFilter(Protocol):
    """Never raises for a fault of the filter."""

    async def __call__(self, group: Group) -> Drop | None:
        """None: the group may be trained on."""
        ...


def in_process(group_filter: GroupFilter) -> AskFilter:
    """For our own filters, which answer at once."""

    async def ask(group: Group) -> Drop | None:
        return drop_of(group_filter.keep(group))

    return ask


class ProcessFilter:
    """Asks the filter behind a `PartProcess`; one call a group."""

    def __init__(
        self, name: str, options: Mapping[str, Any], needs_spread: bool, timeout_s: float
    ) -> None:
        arguments = (name, dict(options), needs_spread)
        self.process = PartProcess(f"group filter {name!r}", BUILD, arguments, timeout_s)

    async def __call__(self, group: Group) -> Drop | None:
        name = self.process.name
        try:
            answer = await self.process.call("keep", group, about=group.problem.id)
        except PartFailed as failure:
            reason = "filter_raised" if isinstance(failure, PartRaised) else "filter_no_answer"
            return Drop(reason, f"{name} {failure}, on {group.problem.id}")
        drop = drop_of(answer)
        if drop is not None and drop.fault:
            return Drop(drop.reason, f"{name} {drop.fault}, on {group.problem.id}")
        return drop


def drop_of(answer: object) -> Drop | None:
    """What `keep` answered, as a verdict."""
    if isinstance(answer, bool | np.bool_):
        return None if answer else Drop("by_filter")
    counted = re.sub(r"\W+", "_", answer.lower()).strip("_") if isinstance(answer, str) else ""
    if counted:
        return Drop(counted[:_LONGEST])
    return Drop("filter_wrong_answer", f"answered {answer!r:.60}, which is no bool and no reason")
