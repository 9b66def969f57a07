"""Statistics of groups, rollouts, trajectories and batches that advantages are made of.

Axes: N rollouts or samples, R trained tokens, S steps of trajectories laid end to end. A group is
named by a number and found by it, never by position or size. Which tokens are steps is the
caller's choice: trained tokens alone give the skip-observation form, in which the value after a
turn's last token is that of the next turn's first one and what the environment wrote in between
takes no step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engines.types import EQUAL_WITHIN

if TYPE_CHECKING:
    from torch import Tensor

    from engines.algorithms.inputs import StepTokens

Estimate = Callable[["Tensor", "Tensor"], "Tensor"]
"""(values of rollouts, their groups) -> an estimate for each rollout"""

STD_EPSILON = 1e-6

WHITENING_EPSILON = 1e-8

LOG_BOUND = 20.0
"""log ratios are held within +-20, so that one token cannot overflow a loss or a sum"""


def bounded(log_ratio_R: Tensor) -> Tensor:
    """[R] log ratios within +-20; beyond, the bound without a gradient.

    Example: -30, 0.5 and infinity -> -20, 0.5 and 20.
    """
    return log_ratio_R.clamp(-LOG_BOUND, LOG_BOUND)


def group_advantages(rewards_N: Tensor, group_N: Tensor, *, should_normalize_std: bool) -> Tensor:
    """Reward minus its group's mean, [N]; optionally over the group's standard deviation.

    The deviation is the sample's (n - 1), plus 1e-6. A group of one, or of equal rewards, has
    advantage exactly 0. With the deviation this is GRPO (arXiv 2402.03300), without it Dr.GRPO
    (arXiv 2503.20783).
    Example: rewards 1, 0, 0, 1 of one group -> 0.5, -0.5, -0.5, 0.5, or +-0.866 normalised.
    """
    import torch

    centred = deviations(rewards_N, group_N)
    if not should_normalize_std:
        return centred
    count = per_group(torch.ones_like(rewards_N), group_N)
    variance = per_group(centred.square(), group_N) / (count - 1).clamp(min=1)
    return centred / (variance.sqrt() + STD_EPSILON)


def leave_one_out_advantages(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus the mean of the *other* rollouts of its group, [N]; RLOO (arXiv 2402.14740).

    A group of one has advantage 0: there is nothing to compare it with.
    Example: rewards 1, 0, 0 of one group -> 1, -0.5, -0.5.
    """
    import torch

    count = per_group(torch.ones_like(rewards_N), group_N)
    # r - (sum - r) / (n - 1) = (r - mean) n / (n - 1)
    return deviations(rewards_N, group_N) * count / (count - 1).clamp(min=1)


def deviations(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """Reward minus its group's mean; exactly 0 where all rewards are equal, whatever rounding
    does to their mean."""
    import torch

    count = per_group(torch.ones_like(rewards_N), group_N)
    centred = rewards_N - per_group(rewards_N, group_N) / count
    num_groups = _num_groups(group_N)
    empty = rewards_N.new_zeros(num_groups)
    highest = empty.scatter_reduce(0, group_N, rewards_N, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, group_N, rewards_N, "amin", include_self=False)
    return torch.where((highest == lowest)[group_N], torch.zeros_like(centred), centred)


def best_and_worst(rewards_N: Tensor, group_N: Tensor) -> Tensor:
    """[N] 1 where a reward is its group's largest, -1 where it is the smallest, 0 elsewhere.

    Of equal rewards the first one counts. A group whose rewards are equal, but for rounding, has
    neither.
    Example: rewards 0, 1, 0.5, 1, 0 of one group -> -1, 1, 0, 0, 0; 0.1 + 0.2 and 0.3 -> 0, 0.
    """
    most_N, least_N = _largest(rewards_N, group_N), -_largest(-rewards_N, group_N)
    is_best_N = _is_first(rewards_N == most_N, group_N)
    is_worst_N = _is_first(rewards_N == least_N, group_N)
    differ_N = most_N - least_N > EQUAL_WITHIN
    return (is_best_N & differ_N).to(rewards_N) - (is_worst_N & differ_N).to(rewards_N)


def _largest(values_N: Tensor, group_N: Tensor) -> Tensor:
    """[N] the largest value of each one's group."""
    empty = values_N.new_zeros(_num_groups(group_N))
    return empty.scatter_reduce(0, group_N, values_N, "amax", include_self=False)[group_N]


def _is_first(is_one_N: Tensor, group_N: Tensor) -> Tensor:
    """[N] bool: whether each is the first such one of its group."""
    import torch

    num = len(is_one_N)
    place_N = torch.where(is_one_N, torch.arange(num), num)
    first = torch.full((_num_groups(group_N),), num).scatter_reduce(0, group_N, place_N, "amin")
    return torch.arange(num) == first[group_N]


def per_group(values_N: Tensor, group_N: Tensor) -> Tensor:
    """The sum over each one's group, [N]."""
    return values_N.new_zeros(_num_groups(group_N)).index_add(0, group_N, values_N)[group_N]


def _num_groups(group_N: Tensor) -> int:
    return int(group_N.max()) + 1 if len(group_N) else 0


def whitened(values_R: Tensor) -> Tensor:
    """(value - mean) / sqrt(variance + 1e-8) over all trained tokens of the step, [R].

    The variance is the sample's (R - 1). Every data-parallel rank holds the whole batch, so that
    the statistics are global. One value alone, or equal ones, become 0.
    Example: 1, 2, 3 -> -1, 0, 1.
    """
    centred = values_R - values_R.mean()
    variance = centred.square().sum() / max(len(values_R) - 1, 1)
    return centred / (variance + WHITENING_EPSILON).sqrt()


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
    import torch

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
    import torch

    num_samples = len(values_N)
    place_N = torch.arange(num_samples)
    numbers, member_N = tokens.rollout_N.unique(return_inverse=True)
    first = torch.full((len(numbers),), num_samples).scatter_reduce(0, member_N, place_N, "amin")
    return estimate(values_N[first], tokens.group_N[first])[member_N]


def gae(
    rewards_S: Tensor, values_S: Tensor, sequence_S: Tensor, *, gamma: float, lam_N: Tensor
) -> Tensor:
    """[S] A_t = d_t + gamma lam A_{t+1} with d_t = r_t + gamma V_{t+1} - V_t; V is 0 at the end.

    `sequence_S` is ascending; trajectory n decays by its own `lam_N[n]` (0 to 1).
    Example: rewards 0, 1, values 0.5, 0.25, gamma 1, lam 0.5 -> d = -0.25, 0.75 -> 0.125, 0.75.
    """
    import torch

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
    import torch

    ones_N = rewards_S.new_ones(num)
    return gae(rewards_S, torch.zeros_like(rewards_S), sequence_S, gamma=gamma, lam_N=ones_N)


def terminal_rewards(rewards_N: Tensor, sequence_S: Tensor) -> Tensor:
    """[S] each trajectory's reward on its last step, zeros before.

    The steps end with a trained token, so an observation never carries the reward.
    """
    return rewards_N[sequence_S] * _is_last(sequence_S)


def _is_last(sequence_S: Tensor) -> Tensor:
    import torch

    is_last = torch.ones_like(sequence_S, dtype=torch.bool)
    is_last[:-1] = sequence_S[1:] != sequence_S[:-1]
    return is_last
