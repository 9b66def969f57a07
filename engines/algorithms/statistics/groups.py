"""Statistics of the rollouts of a group. Axis: N rollouts.

A group is named by a number and found by it, never by position or size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def deviations(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus its group's mean; exactly 0 where all rewards are equal, whatever rounding
    does to their mean."""
    count = per_group(torch.ones_like(rewards_N), group_N)
    centred = rewards_N - per_group(rewards_N, group_N) / count
    num_groups = _num_groups(group_N)
    empty = rewards_N.new_zeros(num_groups)
    highest = empty.scatter_reduce(0, group_N, rewards_N, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, group_N, rewards_N, "amin", include_self=False)
    return torch.where((highest == lowest)[group_N], torch.zeros_like(centred), centred)


def per_group(values_N: Tensor, group_N: Tensor) -> Tensor:
    """The sum over each one's group, [N]."""
    return values_N.new_zeros(_num_groups(group_N)).index_add(0, group_N, values_N)[group_N]


def _num_groups(group_N: Tensor) -> int:
    return int(group_N.max()) + 1 if len(group_N) else 0
