"""How much better a rollout was than the others of its group: GRPO, Dr.GRPO, RLOO.

Axis: N rollouts. A group is named by a number and found by it, never by position or size.
"""

from __future__ import annotations

import torch
from torch import Tensor

STD_EPSILON = 1e-6


def group_advantages(rewards_N: Tensor, group_N: Tensor, *, should_normalize_std: bool) -> Tensor:
    """Reward minus its group's mean, [N]; optionally over the group's standard deviation.

    The deviation is the sample's (n - 1), plus 1e-6. A group of one, or of equal rewards, has
    advantage exactly 0. With the deviation this is GRPO (arXiv 2402.03300), without it Dr.GRPO
    (arXiv 2503.20783).
    Example: rewards 1, 0, 0, 1 of one group -> 0.5, -0.5, -0.5, 0.5, or +-0.866 normalised.
    """
    centred = _deviations(rewards_N, group_N)
    if not should_normalize_std:
        return centred
    count = _per_group(torch.ones_like(rewards_N), group_N)
    variance = _per_group(centred.square(), group_N) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_EPSILON)


def leave_one_out_advantages(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus the mean of the *other* rollouts of its group, [N]; RLOO (arXiv 2402.14740).

    A group of one has advantage 0: there is nothing to compare it with.
    Example: rewards 1, 0, 0 of one group -> 1, -0.5, -0.5.
    """
    count = _per_group(torch.ones_like(rewards_N), group_N)
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
    return _deviations(rewards_N, group_N) * count / (count - 1).clamp(min=1)


def _deviations(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus its group's mean; exactly 0 where all rewards are equal, whatever rounding
    does to their mean."""
    count = _per_group(torch.ones_like(rewards_N), group_N)
    centred = rewards_N - _per_group(rewards_N, group_N) / count
    num_groups = _num_groups(group_N)
    empty = rewards_N.new_zeros(num_groups)
    highest = empty.scatter_reduce(0, group_N, rewards_N, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, group_N, rewards_N, "amin", include_self=False)
    return torch.where((highest == lowest)[group_N], torch.zeros_like(centred), centred)


def _per_group(values_N: Tensor, group_N: Tensor) -> Tensor:
    """The sum over each one's group, [N]."""
    return values_N.new_zeros(_num_groups(group_N)).index_add(0, group_N, values_N)[group_N]


def _num_groups(group_N: Tensor) -> int:
    return int(group_N.max()) + 1 if len(group_N) else 0
