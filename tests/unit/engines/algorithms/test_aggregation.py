"""How tokens' losses become one: by hand, and the same however a mini-batch is cut."""

from __future__ import annotations

import random

import pytest
import torch

from engines.algorithms.aggregation import Mean, shares

pytestmark = pytest.mark.unit

LOSSES = [[3.0], [1.0, 2.0, 6.0]]
"""of two samples"""


def total(mean: Mean, losses: list[list[float]], rollouts: list[int], lengths=None) -> float:
    made = shares(
        mean,
        torch.tensor([len(s) for s in losses]),
        torch.tensor(rollouts),
        None if lengths is None else torch.tensor(lengths),
    )
    sums = torch.tensor([sum(s) for s in losses], dtype=torch.float64)
    return float((made.weight_N * sums).sum() / made.units_N.sum())


@pytest.mark.parametrize(
    ("mean", "rollouts", "lengths", "wanted"),
    [
        # 12 over 4 tokens.
        ("token_mean", [0, 1], None, 3),
        # (3 + 9 / 3) / 2.
        ("sequence_mean", [0, 1], None, 3),
        ("sequence_mean", [7, 7], None, 3),
        # Two rollouts of one sample: as over sequences. One of two samples: 12 / 4, once.
        ("rollout_mean", [0, 1], None, 3),
        ("rollout_mean", [5, 5], None, 3),
        # (3 / 10 + 9 / 10) / 2, and as one rollout (3 + 9) / 10.
        ("constant", [0, 1], [10, 10], 0.6),
        ("constant", [4, 4], [10, 10], 1.2),
        # Each by its own budget: (3 / 5 + 9 / 10) / 2.
        ("constant", [0, 1], [5, 10], 0.75),
    ],
)
@pytest.mark.proof("aggregation {mean}", "hand")
def test_means_by_hand(mean: Mean, rollouts: list[int], lengths, wanted: float) -> None:
    assert total(mean, LOSSES, rollouts, lengths) == pytest.approx(wanted)


@pytest.mark.proof("aggregation token_mean", "hand", numbers=2)
@pytest.mark.proof("aggregation sequence_mean", "hand", numbers=2)
@pytest.mark.proof("aggregation rollout_mean", "hand")
def test_means_differ_where_they_should() -> None:
    # Samples a (12), b (1, 2, 6) of rollouts 0, 1: 21 / 4, (12 + 3) / 2.
    losses = [[12.0], [1.0, 2.0, 6.0]]
    assert total("token_mean", losses, [0, 1]) == pytest.approx(5.25)
    assert total("sequence_mean", losses, [0, 1]) == pytest.approx(7.5)
    # A third sample (9) of rollout 1: 30 / 5; sequences (12 + (3 + 9) / 2) / 2; rollouts
    # (12 + 18 / 4) / 2.
    assert total("token_mean", [*losses, [9.0]], [0, 1, 1]) == pytest.approx(6)
    assert total("sequence_mean", [*losses, [9.0]], [0, 1, 1]) == pytest.approx(9)
    assert total("rollout_mean", [*losses, [9.0]], [0, 1, 1]) == pytest.approx(8.25)


@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "rollout_mean", "constant"])
@pytest.mark.proof("aggregation {mean}", "invariance")
def test_a_mean_does_not_depend_on_how_the_batch_is_cut(mean: Mean) -> None:
    draw = random.Random(3)
    losses = [[draw.random() for _ in range(draw.randrange(1, 9))] for _ in range(30)]
    rollouts, lengths = [draw.randrange(12) for _ in losses], [8] * 30
    whole = total(mean, losses, rollouts, lengths)
    made = shares(
        mean,
        torch.tensor([len(s) for s in losses]),
        torch.tensor(rollouts),
        torch.tensor(lengths),
    )
    order = draw.sample(range(30), 30)
    parts = [order[:7], order[7:8], order[8:8], order[8:]]
    numerator = sum(float(made.weight_N[i]) * sum(losses[i]) for part in parts for i in part)
    denominator = sum(int(made.units_N[i]) for part in parts for i in part)
    assert numerator / denominator == pytest.approx(whole)


@pytest.mark.proof("aggregation constant", "edge")
def test_a_constant_mean_needs_lengths() -> None:
    with pytest.raises(ValueError, match="lengths"):
        shares("constant", torch.tensor([1]), torch.tensor([0]))
