"""What a reward model's own test says of it, by margin and by length."""

from __future__ import annotations

import pytest

from tasks.preference.body import learned
from tasks.reward.body import judged, length_bias

pytestmark = pytest.mark.unit


def test_accuracy_is_told_by_margin_and_by_length() -> None:
    found = judged([1.0, -1.0, 2.0, 0.0], [0.1, 0.2, 3.0, 0.2], [3, -2, 5, 0])
    assert found == {
        "held_out_accuracy": 0.5,
        "accuracy_small_margin": pytest.approx(1 / 3),
        "accuracy_large_margin": 1.0,
        "accuracy_better_longer": 1.0,
        "accuracy_better_shorter": 0.0,
    }
    (warning,) = length_bias(found)
    assert "learned to prefer longer answers" in str(warning)


def test_groups_without_a_pair_have_no_accuracy() -> None:
    assert judged([], [], []) == {}
    assert judged([1.0], [0.0], [0]) == {"held_out_accuracy": 1.0}
    assert not list(length_bias({"accuracy_better_longer": 1.0}))


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"accuracy": 0.52, "margin": 0.1}, ["in 52% of the last comparisons"]),
        ({"accuracy": 0.9, "margin": -0.1}, ["by -0.1 on average"]),
        ({"accuracy": 0.9, "margin": 1, "chosen_drift": -0.5}, ["by 0.5 nats a token"]),
        ({"accuracy": 0.9, "margin": 1, "chosen_drift": -0.1}, []),
    ],
)
def test_a_run_that_learned_nothing_or_fell_apart_is_told(
    last: dict[str, float], said: list[str]
) -> None:
    found = [str(warning) for warning in learned(last)]
    assert len(found) == len(said)
    assert all(part in told for part, told in zip(said, found, strict=True))
