"""GroupBuffer: groups between sampling and training, none ever too old.

    put(group) ──▶ waits, in the order of tickets ──▶ take() ──▶ train, publish ──▶ drop_stale()

A group at position p is trained after p // groups_per_step further updates; one that will be more
than `max_staleness` versions old by then is dropped.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from pathlib import Path

from engines.rollout.protocols import PolicyVersion
from engines.rollout.records.packed_groups import pack_groups, unpack_groups
from engines.types import Group

_FILE = "buffer.bin"


class GroupBuffer:
    """What waits to be trained on."""

    def __init__(self, *, groups_per_step: int, max_staleness: int, policy: PolicyVersion) -> None:
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self._policy = policy
        self._waiting: list[Group] = []
        self.reused = 0
        """of the groups taken last, those that an earlier step trained on as well"""
        self.fault = ""
        """what went wrong with the choice of those groups"""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, group: Group) -> None:
        insort(self._waiting, group, key=lambda waiting: waiting.ticket)

    def take(self, recorded: Sequence[int] | None = None) -> list[Group]:
        """The groups of the next step, at most `groups_per_step`: the oldest tickets, or those that
        the take log has `recorded`, if all of them wait and none is too old.

        Raises AssertionError for a group that must not be trained on any more.
        """
        by_ticket = {group.ticket: group for group in self._waiting}
        if recorded is not None and by_ticket.keys() >= set(recorded):
            taken = [by_ticket[number] for number in recorded]
            if not all(map(self.is_fresh, taken)):  # this attempt goes another way
                self.drop_stale()
                taken = self._next()
        else:
            taken = self._next()
        for group in taken:
            if not self.is_fresh(group):
                raise AssertionError(
                    f"group {group.ticket} holds samples over {self.max_staleness} versions older"
                    f" than the policy, which is at {self._policy.version}"
                )
        chosen = {group.ticket for group in taken}
        self._waiting = [group for group in self._waiting if group.ticket not in chosen]
        return taken

    def _next(self) -> list[Group]:
        """What a step takes that no attempt took before."""
        return self._waiting[: self.groups_per_step]

    def has(self, ticket: int) -> bool:
        return any(group.ticket == ticket for group in self._waiting)

    def drop_stale(self, needed: Collection[int] = ()) -> list[Group]:
        """Drop what will be too old when its turn comes, but no ticket `needed`. -> the dropped."""
        kept: list[Group] = []
        dropped: list[Group] = []
        for group in self._waiting:
            place = len(kept) // self.groups_per_step
            if group.ticket in needed or self.is_fresh(group, place):
                kept.append(group)
            else:
                dropped.append(group)
        self._waiting = kept
        return dropped

    def save(self, folder: Path) -> None:
        """Write what waits into a checkpoint's folder: no later weights could sample it again."""
        (folder / _FILE).write_bytes(pack_groups(self._waiting))

    def restore(self, folder: Path) -> None:
        """Take up what waited at a checkpoint."""
        self._waiting = unpack_groups((folder / _FILE).read_bytes())

    def is_fresh(self, group: Group, updates: int = 0) -> bool:
        """Whether it may still be trained on after that many more updates."""
        versions = [s.oldest_version for s in group.samples if s.num_trained_tokens]
        trained_at = self._policy.version + updates
        return trained_at - min(versions, default=trained_at) <= self.max_staleness
