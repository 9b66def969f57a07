"""How much better a rollout was than the others of its group: RLOO. Axis: N rollouts."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.algorithms.statistics.groups import deviations, per_group


def leave_one_out_advantages(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus the mean of the *other* rollouts of its group, [N]; RLOO (arXiv 2402.14740).

    A group of one has advantage 0: there is nothing to compare it with.
    Example: rewards 1, 0, 0 of one group -> 1, -0.5, -0.5.
    """
    count = per_group(torch.ones_like(rewards_N), group_N)
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
    return deviations(rewards_N, group_N) * count / (count - 1).clamp(min=1)
