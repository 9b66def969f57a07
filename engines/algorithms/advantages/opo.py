"""OPO's advantages: the baseline that makes the gradient's variance smallest (arXiv 2505.23585).

That is the mean of rewards weighted by the squared norm of each rollout's gradient, which grows
with its length.
"""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.advantages.rollouts import lengths, per_rollout, totals
from engines.algorithms.inputs import StepTokens
from engines.algorithms.statistics.groups import deviations, per_group


def advantages(tokens: StepTokens) -> Tensor:
    """Example: rewards 1, 0 of 3 and 1 tokens -> baseline 0.75, advantages 0.25, -0.75."""
    lengths_N = lengths(tokens)
    # Exactly 0 where the rewards of a group are equal; a mean of these moves the baseline only.
    above_mean_N = per_rollout(tokens, totals(tokens), deviations)
    weighted_N = per_rollout(tokens, lengths_N * above_mean_N, per_group)
    tokens_of_group_N = per_rollout(tokens, lengths_N, per_group).clamp(min=1)
    return (above_mean_N - weighted_N / tokens_of_group_N)[tokens.sequence_R]
