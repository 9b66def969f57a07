"""ChoosingBuffer: a buffer in which a rule of the user's own says what a step takes.

    put(group) ──▶ waits ──▶ the rule takes ──▶ train, publish ──▶ too old? gone
                     ▲                             │
                     └── taken, and the rule keeps it ◀┘

The guarantees are the buffer's: nothing too old is taken, a step takes a group once, and what the
take log recorded wins. A rule that raises or answers nonsense costs its choice: the step takes the
oldest tickets, and the fault is said.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from pathlib import Path

from engines.rollout.buffers.take_rule import TakeRule, WaitingGroup, summary, wrong_take
from engines.rollout.group_buffer import GroupBuffer
from engines.rollout.protocols import PolicyVersion
from engines.types import Group

_FILE = "taken.json"


class ChoosingBuffer(GroupBuffer):
    """Its length is what waits for its first step: groups that may come again replace no others, so
    sampling goes on."""

    def __init__(
        self,
        rule: TakeRule,
        *,
        groups_per_step: int,
        max_staleness: int,
        policy: PolicyVersion,
        seed: int,
    ) -> None:
        super().__init__(
            groups_per_step=groups_per_step, max_staleness=max_staleness, policy=policy
        )
        self._rule = rule
        self._seed = seed
        self._times: dict[int, int] = {}
        """steps that took a group which still waits, by ticket"""

    def __len__(self) -> int:
        return sum(group.ticket not in self._times for group in self._waiting)

    def take(self, recorded: Sequence[int] | None = None) -> list[Group]:
        self.fault = ""
        taken = super().take(recorded)
        self.reused = sum(group.ticket in self._times for group in taken)
        for group in taken:
            times = self._times.pop(group.ticket, 0) + 1
            if self._keeps(group, times):
                self._times[group.ticket] = times
                self.put(group)
        return taken

    def drop_stale(self, needed: Collection[int] = ()) -> list[Group]:
        """Drop what is too old now, but no ticket `needed`. -> those that no step trained on."""
        dropped = [g for g in self._waiting if g.ticket not in needed and not self.is_fresh(g)]
        gone = {group.ticket for group in dropped}
        self._waiting = [group for group in self._waiting if group.ticket not in gone]
        unused = [group for group in dropped if group.ticket not in self._times]
        self._times = {t: times for t, times in self._times.items() if t not in gone}
        return unused

    def save(self, folder: Path) -> None:
        super().save(folder)
        (folder / _FILE).write_text(json.dumps([*self._times.items()]))

    def restore(self, folder: Path) -> None:
        super().restore(folder)
        self._times = dict(json.loads((folder / _FILE).read_text()))

    def _next(self) -> list[Group]:
        fresh = {group.ticket: group for group in self._waiting if self.is_fresh(group)}
        told = [self._summary(g, self._times.get(g.ticket, 0)) for g in fresh.values()]
        # Another number in each step, and the same when the step is repeated.
        seed = random.Random(f"{self._seed}/take/{self._policy.version}").getrandbits(32)
        try:
            chosen = [int(t) for t in self._rule.take(told, self.groups_per_step, seed)]
            wrong = wrong_take(chosen, fresh.keys(), self.groups_per_step)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            chosen, wrong = [], f"raised {type(error).__name__}: {error}"
        if not wrong:
            return [fresh[ticket] for ticket in chosen]
        self.fault = self.fault or f"the buffer's rule: take() {wrong}; the oldest tickets are used"
        return list(fresh.values())[: self.groups_per_step]

    def _keeps(self, group: Group, times: int) -> bool:
        try:
            return bool(self._rule.keeps(self._summary(group, times)))
        except (Exception, SystemExit) as error:  # the same
            self.fault = self.fault or (
                f"the buffer's rule: keeps() raised {type(error).__name__}: {error}; the group is"
                " not taken again"
            )
            return False

    def _summary(self, group: Group, times: int) -> WaitingGroup:
        return summary(group, self._policy.version, times)
