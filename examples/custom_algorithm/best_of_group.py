"""A custom advantage: only a group's best rollout is pushed up, the others not at all."""

import torch

from engines.algorithms.inputs import StepTokens


def advantage(tokens: StepTokens) -> torch.Tensor:
    """[R] 1 for tokens of the best rollout of a group whose rewards differ, else 0."""
    num = int(tokens.group_N.max()) + 1
    empty = tokens.rewards_N.new_zeros(num)
    best = empty.scatter_reduce(0, tokens.group_N, tokens.rewards_N, "amax", include_self=False)
    worst = empty.scatter_reduce(0, tokens.group_N, tokens.rewards_N, "amin", include_self=False)
    is_best_N = (tokens.rewards_N == best[tokens.group_N]) & (best > worst)[tokens.group_N]
    return is_best_N.double()[tokens.sequence_R]
