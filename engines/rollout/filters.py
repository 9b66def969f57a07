"""Group filters: which groups a step may train on.

A filter of ours is asked at once, a user's own in a process of its own. One that raises, hangs or
answers nonsense drops the group that it was asked about; the run goes on, and the reason is counted
and said. `filter_faults` says what every filter must do, tried on small groups: ours in tests,
yours by command.

    tributary test-hook my_filter.py:MyFilter
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engines.draws import Fault, guarded
from engines.rollout.protocols import FILTERS
from engines.types import TRAINABLE, Group, Message, Problem, Sample, Status, one_per_rollout
from engines.weight_versions import WeightVersions
from infra.errors import InputError
from infra.hooks import construct, require_methods, resolve
from infra.processes.part_process import PartFailed, PartProcess, PartRaised


class GroupFilter(Protocol):
    """Asked once a group, after its rollouts are judged. Its answer depends on the group alone."""

    def keep(self, group: Group) -> bool | str:
        """True: it may be trained on. False, or a short reason by which it is counted: it is
        dropped. `group.samples` may hold failed and aborted ones, which are not trained on."""
        ...


class CanTeach:
    """Rewards differ; or anything, where the advantage does not compare rewards in a group."""

    def __init__(self, needs_spread: bool) -> None:
        self._needs_spread = needs_spread

    def keep(self, group: Group) -> bool | str:
        return not self._needs_spread or group.has_signal or "equal_rewards"


class OutcomeBetween:
    """The mean outcome of the group's rollouts is above one bound and below the other, and their
    rewards differ if the advantage compares them: outcomes may all be 0.5.

    The outcome is the verifier's own verdict: groups whose rewards differ only in shaping go.
    """

    def __init__(self, needs_spread: bool, above: float = 0.0, below: float = 1.0) -> None:
        if not 0 <= above < below <= 1:
            raise InputError(
                f"above {above:g} and below {below:g}: 0 <= above < below <= 1 must hold"
            )
        self._above, self._below = above, below
        self._can_teach = CanTeach(needs_spread)

    def keep(self, group: Group) -> bool | str:
        judged = [s for s in one_per_rollout(group.samples) if s.status in TRAINABLE]
        if not judged:
            return "nothing_judged"
        mean = sum(s.rewards.get("outcome", 0.0) for s in judged) / len(judged)
        if mean <= self._above:
            return "too_hard"
        return self._can_teach.keep(group) if mean < self._below else "too_easy"


class Every:
    """For the batch as it was drawn: such groups have advantage 0 and count in the means."""

    def keep(self, group: Group) -> bool | str:
        return True


def build(name: str, options: Mapping[str, Any], needs_spread: bool) -> GroupFilter:
    """The filter `name` (built in, or `module:attribute`) made with its options, and with
    `needs_spread` where its constructor has such a parameter: whether the advantage compares the
    rewards of a group.

    Raises `InputError` for an unknown name, a path that does not lead to a filter, or options that
    it does not take.
    """
    factory = resolve("group filter", name, FILTERS)
    knows = "needs_spread" in inspect.signature(factory).parameters
    given = {"needs_spread": needs_spread} if knows else {}
    made = construct("group filter", name, factory, {**given, **options})
    require_methods("group filter", name, made, ("keep",))
    return made


BUILD = "engines.rollout.filters:build"

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
    """Return what `keep` answered, as a verdict."""
    if isinstance(answer, bool | np.bool_):
        return None if answer else Drop("by_filter")
    counted = re.sub(r"\W+", "_", answer.lower()).strip("_") if isinstance(answer, str) else ""
    if counted:
        return Drop(counted[:_LONGEST])
    return Drop("filter_wrong_answer", f"answered {answer!r:.60}, which is no bool and no reason")


def filter_faults(group_filter: GroupFilter) -> list[Fault]:
    """Checks of a class with `def keep(self, group: Group) -> bool | str`."""
    return list(guarded(group_filter, _checks))


def example_groups() -> list[Group]:
    """Outcomes that differ, that are all 1, that are all 0; one of two samples; failed rollouts; a
    single rollout; one that was cut off."""
    return [
        _group(0, [1.0, 0.0, 0.0, 1.0]),
        _group(1, [1.0, 1.0, 1.0, 1.0]),
        _group(2, [0.0, 0.0, 0.0, 0.0]),
        _group(3, [1.0, 0.0], branches=2),
        _group(4, [0.5, 1.0, 0.0], failed=2),
        _group(5, [1.0]),
        _group(6, [0.0, 1.0], status=Status.TRUNCATED),
    ]


def _checks(group_filter: GroupFilter) -> Iterator[Fault]:
    groups = example_groups()
    before = deepcopy(groups)
    first = [group_filter.keep(group) for group in groups]
    for group, answer in zip(groups, first, strict=True):
        drop = drop_of(answer)
        if drop is not None and drop.fault:
            yield Fault("answers a bool or a reason", f"{drop.fault}, on {group.problem.id}")
            return
    if groups != before:
        yield Fault("leaves the group alone", "a group changed")
        return
    again = [group_filter.keep(group) for group in reversed(groups)]
    if first != again[::-1]:
        yield Fault(
            "answers by the group alone", "the same groups in another order get other answers"
        )
    reasons = {drop.reason for drop in map(drop_of, first) if isinstance(drop, Drop)}
    if len(reasons) > 4 or any(any(map(str.isdigit, reason)) for reason in reasons):
        yield Fault(
            "gives few reasons, without numbers in them",
            f"{', '.join(sorted(reasons))}; each reason is a curve of its own",
        )


def _group(
    number: int,
    outcomes: list[float],
    *,
    branches: int = 1,
    failed: int = 0,
    status: Status = Status.COMPLETED,
) -> Group:
    problem = Problem(f"example/{number}", "example", (Message("user", "1+1"),), reference="2")
    samples = [
        _sample(problem, index, branch, status, outcome)
        for index, outcome in enumerate(outcomes)
        for branch in range(branches)
    ]
    for index in range(len(outcomes), len(outcomes) + failed):
        samples.append(_sample(problem, index, 0, Status.FAILED, None))
    return Group(problem, samples, number)


def _sample(
    problem: Problem, index: int, branch: int, status: Status, outcome: float | None
) -> Sample:
    """Return a sample of 3 prompt tokens and 2 to 5 that the policy wrote."""
    written = 2 + (index + branch) % 4
    return Sample(
        problem_id=problem.id,
        domain=problem.domain,
        group_id=f"0/{problem.id}",
        rollout_id=f"0/{problem.id}#{index}",
        sample_index=index,
        branch=branch,
        tokens=np.arange(3 + written, dtype=np.int32),
        loss_mask=np.array([False] * 3 + [True] * written),
        logprobs=np.array([0.0] * 3 + [-0.5] * written, np.float32),
        weight_versions=WeightVersions.of_runs([(-1, 3), (0, written)]),
        status=status,
        reward=0.0 if outcome is None else outcome,
        rewards={} if outcome is None else {"outcome": outcome},
        reason="the reward raised" if outcome is None else "",
        token_budget=8,
    )
