"""Buffers: groups between sampling and training, none ever too old.

    put(group) ──▶ waits ──▶ the oldest, or a rule's choice ──▶ train, publish ──▶ too old? gone
                     ▲                             │
                     └── taken, and the rule keeps it ◀┘

A group at position p is trained after p // groups_per_step further updates; one that will be more
than `max_staleness` versions old by then is dropped. A rule of the user's own says what a step
takes, and what may come again. The guarantees are the buffer's: nothing too old is taken, a step
takes a group once, and what the take log recorded wins. A rule that raises or answers nonsense
costs its choice: the step takes the oldest tickets, and the fault is said. `rule_faults` says what
every rule must do, tried on a few waiting groups.

    tributary test-hook my_buffer.py:MyRule
"""

from __future__ import annotations

import json
import random
from bisect import insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from engines.draws import Fault, guarded
from engines.rollout.protocols import BUFFERS, PolicyVersion
from engines.rollout.records.packing import pack_groups, unpack_groups
from engines.types import TRAINABLE, Group, one_per_rollout
from infra.hooks import construct, require_methods, require_no_options, resolve

_FILE = "buffer.bin"


class GroupBuffer:
    """Keeps what waits to be trained on."""

    takes_oldest = True
    """whether a step takes the first tickets that wait, so that more of them change nothing"""

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
        taken = [by_ticket[number] for number in recorded or () if number in by_ticket]
        if recorded is None:
            taken = self._next()
        elif len(taken) < len(recorded) or not all(map(self.is_fresh, taken)):
            self.drop_stale()  # this attempt goes another way
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
        """Return what a step takes that no attempt took before."""
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
        """Return whether it may still be trained on after that many more updates."""
        trained_at = self._policy.version + updates
        return trained_at - _oldest(group, trained_at) <= self.max_staleness

    def versions(self) -> dict[int, int]:
        """Return the versions of the oldest tokens of what waits for its first step, by ticket."""
        return {group.ticket: _oldest(group, self._policy.version) for group in self._waiting}


def _oldest(group: Group, default: int) -> int:
    """The version of its oldest token; the default where none can be trained on."""
    versions = [s.weight_versions.oldest for s in group.samples if s.num_trained_tokens]
    return min(versions, default=default)


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """Says what is known of a group that may be trained on."""

    ticket: int
    """serial number of its problem in the stage: lower ones are older"""
    domain: str
    problem_id: str
    rewards: tuple[float, ...]
    """of its rollouts that can be trained on"""
    outcomes: tuple[float, ...]
    """the verifier's verdicts on the same, 0 to 1"""
    num_tokens: int
    """that the policy wrote"""
    age: int
    """policy versions that its oldest token is behind now; at most `max_staleness`"""
    times_taken: int
    """steps that trained on it already"""


class TakeRule(Protocol):
    """A rule's answers depend on what it is given alone: a resumed stage asks again."""

    def take(self, waiting: Sequence[WaitingGroup], count: int, seed: int) -> Sequence[int]:
        """Tickets of the groups that the next step trains on: at most `count`, each once.

        `waiting` is in the order of tickets; `seed` is another one each step, for rules that draw.
        """
        ...

    def keeps(self, taken: WaitingGroup) -> bool:
        """Return whether a group that was just taken (`times_taken` counts this step) may be taken
        again, in a later step, while it is not too old."""
        ...


def summary(group: Group, version: int, times_taken: int) -> WaitingGroup:
    """`version` is the policy's now."""
    kept = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
    return WaitingGroup(
        ticket=group.ticket,
        domain=group.problem.domain,
        problem_id=group.problem.id,
        rewards=tuple(s.reward for s in kept),
        outcomes=tuple(s.rewards.get("outcome", 0.0) for s in kept),
        num_tokens=sum(s.num_trained_tokens for s in group.samples),
        age=version - _oldest(group, version),
        times_taken=times_taken,
    )


def wrong_take(chosen: Sequence[int], waiting: Collection[int], count: int) -> str:
    """Return what is wrong with the tickets that a rule gave; empty if nothing is."""
    if len(set(chosen)) < len(chosen):
        return f"gave a ticket twice: {chosen}"
    if len(chosen) > count:
        return f"gave {len(chosen)} tickets, more than the {count} of a step"
    if unknown := set(chosen) - set(waiting):
        return f"gave tickets that do not wait: {sorted(unknown)}"
    return ""


_TAKEN_FILE = "taken.json"


class ChoosingBuffer(GroupBuffer):
    """The buffer's length is what waits for its first step: groups that may come again replace no
    others, so sampling goes on."""

    takes_oldest = False

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

    def versions(self) -> dict[int, int]:
        return {t: version for t, version in super().versions().items() if t not in self._times}

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
        (folder / _TAKEN_FILE).write_text(json.dumps([*self._times.items()]))

    def restore(self, folder: Path) -> None:
        super().restore(folder)
        self._times = dict(json.loads((folder / _TAKEN_FILE).read_text()))

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


def build(
    name: str,
    options: Mapping[str, Any],
    *,
    groups_per_step: int,
    max_staleness: int,
    policy: PolicyVersion,
    seed: int,
) -> GroupBuffer:
    """The buffer `name` (built in, or one with the rule `module:attribute` made with its options).

    Raises `InputError` for an unknown name, a path that does not lead to a rule, or options that it
    does not take.
    """
    rule = build_rule(name, options)
    if rule is None:
        return GroupBuffer(
            groups_per_step=groups_per_step, max_staleness=max_staleness, policy=policy
        )
    return ChoosingBuffer(
        rule, groups_per_step=groups_per_step, max_staleness=max_staleness, policy=policy, seed=seed
    )


def build_rule(name: str, options: Mapping[str, Any]) -> TakeRule | None:
    """The rule `module:attribute`, made with its options; None for ours, which has none. Raises
    `InputError`, as above."""
    if name in BUFFERS:
        require_no_options("buffer", name, options)
        return None
    rule = construct("buffer", name, resolve("buffer", name, BUFFERS), options)
    require_methods("buffer", name, rule, ("take", "keeps"))
    return rule


_COUNT = 4
"""groups of a step"""

_SEEDS = (1, 2, 3, 4)


def rule_faults(rule: TakeRule) -> list[Fault]:
    """Checks of a class with `take(waiting, count, seed)` and `keeps(taken)`."""
    return list(guarded(rule, _checks))


def example_waiting() -> list[WaitingGroup]:
    """Nine groups of two domains, of different spread, size, age, and number of steps that took
    them."""
    return [
        WaitingGroup(
            ticket=10 + 3 * i,
            domain="ab"[i % 2],
            problem_id=f"example/{i}",
            rewards=(0.0, i / 8, 1.0 if i % 3 else 0.0),
            outcomes=(0.0, float(i > 4), float(i % 3 > 0)),
            num_tokens=10 + 7 * i,
            age=i % 3,
            times_taken=(0, 0, 1)[i % 3],
        )
        for i in range(9)
    ]


def _checks(rule: TakeRule) -> Iterator[Fault]:
    for waiting in (example_waiting(), example_waiting()[:2], []):
        yield from _takes(rule, waiting)
    kept: list[object] = [rule.keeps(taken) for taken in _taken()]
    if any(not isinstance(answer, bool) for answer in kept):
        yield Fault("keeps() gives a bool", f"{kept}")
    elif kept != [rule.keeps(taken) for taken in _taken()]:
        yield Fault("answers by what it is given alone", "two calls of keeps() differ")


def _takes(rule: TakeRule, waiting: Sequence[WaitingGroup]) -> Iterator[Fault]:
    of = f"of {len(waiting)} waiting groups"
    answers = [[int(t) for t in rule.take(list(waiting), _COUNT, seed)] for seed in _SEEDS]
    wrong = [wrong_take(a, [group.ticket for group in waiting], _COUNT) for a in answers]
    if any(wrong):
        yield Fault("takes waiting groups, each once, at most a step's", f"{of}, {max(wrong)}")
        return
    if waiting and any(not answer for answer in answers):
        yield Fault("takes a group where one waits", f"{of}, none")
    again = [[int(t) for t in rule.take(list(waiting), _COUNT, seed)] for seed in _SEEDS]
    if again != answers:
        yield Fault(
            "answers by what it is given alone",
            f"{of}, two calls with the same seed differ; draw with random.Random(seed)",
        )


def _taken() -> list[WaitingGroup]:
    return [replace(group, times_taken=group.times_taken + 1) for group in example_waiting()]
