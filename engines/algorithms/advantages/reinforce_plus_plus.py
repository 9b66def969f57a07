"""REINFORCE++: discounted returns of tokens, without a group."""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.inputs import StepTokens
from engines.algorithms.statistics.gae import discounted_returns, terminal_rewards


def advantages(tokens: StepTokens, *, gamma: float) -> Tensor:
    rewards_R = tokens.token_rewards_R + terminal_rewards(tokens.rewards_N, tokens.sequence_R)
    return discounted_returns(rewards_R, tokens.sequence_R, len(tokens.rewards_N), gamma=gamma)
