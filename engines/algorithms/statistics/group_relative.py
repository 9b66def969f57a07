"""How much better a rollout was than its group's mean: GRPO, Dr.GRPO. Axis: N rollouts."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.algorithms.statistics.groups import deviations, per_group

STD_EPSILON = 1e-6


def group_advantages(rewards_N: Tensor, group_N: Tensor, *, should_normalize_std: bool) -> Tensor:
    """Reward minus its group's mean, [N]; optionally over the group's standard deviation.

    The deviation is the sample's (n - 1), plus 1e-6. A group of one, or of equal rewards, has
    advantage exactly 0. With the deviation this is GRPO (arXiv 2402.03300), without it Dr.GRPO
    (arXiv 2503.20783).
    Example: rewards 1, 0, 0, 1 of one group -> 0.5, -0.5, -0.5, 0.5, or +-0.866 normalised.
    """
    centred = deviations(rewards_N, group_N)
    if not should_normalize_std:
        return centred
    count = per_group(torch.ones_like(rewards_N), group_N)
    variance = per_group(centred.square(), group_N) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_EPSILON)
