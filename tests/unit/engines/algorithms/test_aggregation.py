"""How tokens' losses become one: by hand, and the same however a mini-batch is cut."""

from __future__ import annotations

import math
import random
from typing import Literal

import numpy as np
import pytest
import torch

from engines.algorithms.aggregation import Mean, shares
from engines.algorithms.inputs import LossInputs
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.algorithms.losses import clip_loss
from engines.algorithms.statistics import group_advantages

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


# The whole GRPO objective against float64 numpy written anew


def numpy_loss(
    logits: np.ndarray,
    labels: np.ndarray,
    old: np.ndarray,
    rewards: list[float],
    lengths: list[int],
    how: Literal["token_mean", "sequence_mean"],
) -> float:
    """The whole objective of one group, written anew in float64 and loops."""
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) + 1e-6
    sequence_losses: list[list[float]] = []
    row = 0
    for reward, length in zip(rewards, lengths, strict=True):
        advantage = (reward - mean) / std
        token_losses = []
        for _ in range(length):
            exps = np.exp(logits[row] - logits[row].max())
            ratio = exps[labels[row]] / exps.sum() / math.exp(old[row])
            bounded = min(max(ratio, 0.8), 1.28)
            token_losses.append(-min(ratio * advantage, bounded * advantage))
            row += 1
        sequence_losses.append(token_losses)
    if how == "token_mean":
        return sum(map(sum, sequence_losses)) / sum(lengths)
    return sum(sum(losses) / len(losses) for losses in sequence_losses) / len(lengths)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean"])
def test_the_whole_objective_agrees_with_numpy_and_finite_differences(
    how: Literal["token_mean", "sequence_mean"],
) -> None:
    rng = np.random.default_rng(1)
    lengths, rewards = [3, 1, 5, 2], [1.0, 0.0, 0.25, 1.0]
    num_rows = sum(lengths)
    logits = rng.normal(size=(num_rows, 7))
    labels = rng.integers(0, 7, num_rows)
    old = np.log(rng.uniform(0.05, 0.4, num_rows))
    rows = torch.arange(4).repeat_interleave(torch.tensor(lengths))
    mean = shares(how, torch.tensor(lengths), torch.arange(4))

    def ours(values: torch.Tensor) -> torch.Tensor:
        # With the identity as the output layer, hidden states are the logits.
        identity = torch.eye(7, dtype=values.dtype)
        logprobs, _ = linear_logprobs(values, identity, torch.from_numpy(labels))
        advantages = group_advantages(
            torch.tensor(rewards, dtype=torch.float64),
            torch.zeros(4, dtype=torch.long),
            should_normalize_std=True,
        )
        tokens = LossInputs(
            logprobs_R=logprobs.double(),
            old_logprobs_R=torch.from_numpy(old),
            advantages_R=advantages[rows],
            segment_R=rows,
            num_trained_B=torch.tensor(lengths),
        )
        policy = clip_loss(tokens, clip_low=0.2, clip_high=0.28, dual_clip=None)
        return (policy.loss_R * mean.weight_N[rows]).sum() / mean.units_N.sum()

    leaf = torch.from_numpy(logits).requires_grad_()
    loss = ours(leaf)
    loss.backward()
    assert loss.item() == pytest.approx(
        numpy_loss(logits, labels, old, rewards, lengths, how), rel=1e-5
    )
    assert leaf.grad is not None
    step = 1e-5
    for row, column in rng.integers(0, 7, (20, 2)):
        bumped = [logits.copy() for _ in range(2)]
        bumped[0][row, column] += step
        bumped[1][row, column] -= step
        up, down = (numpy_loss(b, labels, old, rewards, lengths, how) for b in bumped)
        slope = (up - down) / (2 * step)
        assert leaf.grad[row, column].item() == pytest.approx(slope, rel=1e-3, abs=1e-6)
