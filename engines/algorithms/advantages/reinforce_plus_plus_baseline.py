"""REINFORCE++-baseline: the group's mean is the baseline, and the batch sets the scale."""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.advantages.rollouts import per_rollout
from engines.algorithms.inputs import StepTokens
from engines.algorithms.statistics.groups import deviations


def advantages(tokens: StepTokens) -> Tensor:
    # A token's own KL counts for that token; only the rollout's reward has a baseline.
    centred_N = per_rollout(tokens, tokens.rewards_N, deviations)
    return centred_N[tokens.sequence_R] + tokens.token_rewards_R
