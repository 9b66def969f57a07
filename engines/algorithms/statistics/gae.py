"""Generalised advantage estimation (arXiv 1506.02438) over trajectories of any lengths.

Axes: N trajectories, S steps laid end to end. Which tokens are steps is the caller's choice:
trained tokens alone give the skip-observation form, in which the value after a turn's last token
is that of the next turn's first one and what the environment wrote in between takes no step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards_S: Tensor, values_S: Tensor, sequence_S: Tensor, *, gamma: float, lam_N: Tensor
) -> Tensor:
    """[S] A_t = d_t + gamma lam A_{t+1} with d_t = r_t + gamma V_{t+1} - V_t; V is 0 at the end.

    `sequence_S` is ascending; trajectory n decays by its own `lam_N[n]` (0 to 1).
    Example: rewards 0, 1, values 0.5, 0.25, gamma 1, lam 0.5 -> d = -0.25, 0.75 -> 0.125, 0.75.
    """
    lengths_N = torch.bincount(sequence_S)
    order_N = lengths_N.argsort(descending=True)
    last_N = lengths_N.cumsum(0)[order_N] - 1
    lam_N = lam_N[order_N].to(rewards_S.dtype)
    next_S = torch.where(_is_last(sequence_S), torch.zeros_like(values_S), values_S.roll(-1))
    advantages_S = rewards_S + gamma * next_S - values_S
    # From each trajectory's end backwards, all at once; the longest stand first in this order.
    descending = lengths_N[order_N].tolist()
    active = len(descending)
    for back in range(1, max(descending, default=0)):
        while descending[active - 1] <= back:
            active -= 1
        here = last_N[:active] - back
        advantages_S[here] += gamma * lam_N[:active] * advantages_S[here + 1]
    return advantages_S


def discounted_returns(rewards_S: Tensor, sequence_S: Tensor, num: int, *, gamma: float) -> Tensor:
    """[S] sum of the rewards from each step on, the later the less: gae without a critic.

    Example: rewards 0, 0, 1 and gamma 0.5 -> 0.25, 0.5, 1.
    """
    ones_N = rewards_S.new_ones(num)
    return gae(rewards_S, torch.zeros_like(rewards_S), sequence_S, gamma=gamma, lam_N=ones_N)


def terminal_rewards(rewards_N: Tensor, sequence_S: Tensor) -> Tensor:
    """[S] each trajectory's reward on its last step, zeros before.

    The steps end with a trained token, so an observation never carries the reward.
    """
    return rewards_N[sequence_S] * _is_last(sequence_S)


def _is_last(sequence_S: Tensor) -> Tensor:
    is_last = torch.ones_like(sequence_S, dtype=torch.bool)
    is_last[:-1] = sequence_S[1:] != sequence_S[:-1]
    return is_last
