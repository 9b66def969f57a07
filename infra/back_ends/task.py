"""A generated API with its policies, and what a user wants of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

DAYS = {"days": 1, "weeks": 7}
"""in a unit of time"""
ASK, REFUSE = "ask", "refuse"
OPTIONAL: Mapping[str, object] = {"fast": False}
"""arguments that may be left out, with what they are then"""


@dataclass(frozen=True, slots=True)
class Api:
    """Functions on things of one `noun`: look at one, change its `field`, delete it.

    A thing may be changed up to `limit` `unit` of age, and is deleted only if the user says yes.
    """

    noun: str
    look: str
    change: str
    delete: str
    field: str
    limit: int
    unit: str
    late: str
    """why a change is refused"""
    kept: str
    """why nothing is deleted"""

    def function(self, verb: str) -> str:
        """Its name, e.g. `view_tin`."""
        return f"{verb}_{self.noun}"

    @property
    def most_days(self) -> int:
        return self.limit * DAYS[self.unit]


@dataclass(frozen=True, slots=True)
class Task:
    """What `user` wants of the thing `target`, and what only the back end or the user knows."""

    api: Api
    user: str
    target: str
    goal: Literal["change", "delete"]
    ages: dict[str, int]
    """of each thing, in days"""
    amount: int
    """that the user tells when asked"""
    agrees: bool
    """to a deletion, when asked"""

    @property
    def is_late(self) -> bool:
        return self.ages[self.target] > self.api.most_days

    def written(self) -> dict[str, Any]:
        """As JSON, which `task_of` reads."""
        return asdict(self)


def task_of(written: Mapping[str, Any]) -> Task:
    fields: dict[str, Any] = {**written, "api": Api(**written["api"])}
    return Task(**fields)
