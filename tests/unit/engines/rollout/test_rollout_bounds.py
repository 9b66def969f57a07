"""When a run ends by itself."""

from __future__ import annotations

import pytest

from engines.rollout.metrics import StopRule
from infra.errors import TrainingStopped

pytestmark = pytest.mark.unit


def watch(**changes):
    bounds = {"solved_reward": 0.9, "min_outcome": 0.1, "max_entropy": 2.0, "max_failed_share": 0.2}
    return StopRule(**{**bounds, **changes})


def follow(made, outcomes, entropy=1.0):
    return [
        made.observe(
            i + 1, {"outcome_mean": o, "failed_share": 0.0, "entropy": entropy}, failure=""
        )
        for i, o in enumerate(outcomes)
    ]


def test_three_steps_over_the_bound_are_solved():
    assert follow(watch(), [0.95, 0.95, 0.95]) == [False, False, True]
    assert follow(watch(), [0.95, 0.2, 0.95]) == [False, False, False]


def test_five_steps_under_the_bound_are_a_collapse():
    follow(watch(), [0.05] * 4)
    with pytest.raises(TrainingStopped, match=r"step 5.*0\.050.*min_outcome"):
        follow(watch(), [0.05] * 5)


def test_entropy_over_the_bound_is_a_collapse():
    with pytest.raises(TrainingStopped, match=r"3\.000 nats"):
        follow(watch(), [0.5] * 5, entropy=3.0)
    follow(watch(max_entropy=None), [0.5] * 9, entropy=3.0)


def test_too_many_failed_samples_stop_with_the_most_frequent_reason():
    metrics = {"outcome_mean": 0.5, "failed_share": 0.3}
    with pytest.raises(TrainingStopped, match=r"30%.*division by zero"):
        watch().observe(1, metrics, failure="outcome: division by zero (9 of 10)")


def test_a_restored_watch_continues_its_windows():
    first = watch()
    follow(first, [0.95, 0.95])
    second = watch()
    second.restore(first.history())
    assert follow(second, [0.95]) == [True]
