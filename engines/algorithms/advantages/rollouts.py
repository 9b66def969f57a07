"""One advantage a rollout: what GRPO and RLOO share. Axes: N samples, R trained tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engines.algorithms.inputs import StepTokens

Estimate = Callable[[Tensor, Tensor], Tensor]
"""(values of rollouts, their groups) -> an estimate for each rollout"""


def of_rollouts(tokens: StepTokens, estimate: Estimate) -> Tensor:
    """[R] one advantage a rollout, of its reward and the rewards of all its tokens."""
    return per_rollout(tokens, totals(tokens), estimate)[tokens.sequence_R]


def totals(tokens: StepTokens) -> Tensor:
    """[N] the reward of each sample's rollout and of all tokens that it wrote, trained or not."""
    only = tokens.counted_only
    others_M = None if only is None else only.token_rewards_M
    return tokens.rewards_N + over_rollouts(tokens, tokens.token_rewards_R, others_M)


def lengths(tokens: StepTokens) -> Tensor:
    """[N] float64 number of tokens that each sample's rollout wrote, trained or not."""
    only = tokens.counted_only
    others_M = None if only is None else torch.ones_like(only.token_rewards_M)
    return over_rollouts(tokens, torch.ones_like(tokens.token_rewards_R), others_M)


def over_rollouts(tokens: StepTokens, values_R: Tensor, others_M: Tensor | None) -> Tensor:
    """[N] the sum over all tokens of each sample's rollout: of the trained ones' values, and of
    those that only count."""
    num_rollouts = int(tokens.rollout_N.max()) + 1
    sums = values_R.new_zeros(num_rollouts).index_add(
        0, tokens.rollout_N[tokens.sequence_R], values_R
    )
    if tokens.counted_only is not None and others_M is not None:
        sums.index_add_(0, tokens.rollout_N[tokens.counted_only.sequence_M], others_M)
    return sums[tokens.rollout_N]


def per_rollout(tokens: StepTokens, values_N: Tensor, estimate: Estimate) -> Tensor:
    """[N] an estimate over rollouts: one counts once in its group, however many samples it has."""
    num_samples = len(values_N)
    place_N = torch.arange(num_samples)
    numbers, member_N = tokens.rollout_N.unique(return_inverse=True)
    first = torch.full((len(numbers),), num_samples).scatter_reduce(0, member_N, place_N, "amin")
    return estimate(values_N[first], tokens.group_N[first])[member_N]
