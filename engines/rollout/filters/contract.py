"""What every group filter must do, tried on small groups: ours in tests, yours by command.

tributary test-hook my_filter.py:MyFilter
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import numpy as np

from engines.fault import Fault, guarded
from engines.rollout.filters.group_filter import GroupFilter
from engines.rollout.filters.verdict import Drop, drop_of
from engines.types import Group, Message, Problem, Sample, Status
from engines.weight_versions import WeightVersions


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
    """Of 3 prompt tokens and 2 to 5 that the policy wrote."""
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
