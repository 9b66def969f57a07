"""The whole GRPO objective against float64 numpy written anew."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch

from engines.algorithms.aggregation import shares
from engines.algorithms.inputs import LossInputs
from engines.algorithms.linear_logprobs import linear_logprobs
from engines.algorithms.losses.clip import clip_loss
from engines.algorithms.statistics.group_relative import group_advantages

pytestmark = pytest.mark.unit


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
