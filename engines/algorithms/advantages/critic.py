"""Generalised advantage estimation from a critic's values, and what the critic learns from."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.algorithms.inputs import CriticTarget, StepTokens, sequence_lengths
from engines.algorithms.statistics.gae import gae, terminal_rewards


def advantages(
    tokens: StepTokens,
    *,
    gamma: float,
    lam: float,
    critic_lam: float,
    alpha: float | None,
    skip_observations: bool,
) -> Tensor:
    del critic_lam  # the critic's own
    return _estimates(tokens, gamma, lam, alpha, skip_observations)[0]


def critic_targets(target: CriticTarget, tokens: StepTokens) -> Tensor:
    """[R] float64: what the critic should have said of each trained token."""
    errors_R, values_R = _estimates(
        tokens, target.gamma, target.critic_lam, None, target.skip_observations
    )
    return errors_R + values_R


def length_adaptive_lambda(lengths_N: Tensor, alpha: float) -> Tensor:
    """[N] lam = 1 - 1 / (alpha x length), at least 0 (VAPO, arXiv 2504.05118; SAO).

    A long trajectory's last reward then still reaches its first token.
    Example: alpha 1.5 and length 4 -> 1 - 1/6 = 0.8333.
    """
    return (1 - 1 / (alpha * lengths_N.clamp(min=1).double())).clamp(min=0)


def _estimates(
    tokens: StepTokens, gamma: float, lam: float, alpha: float | None, skip_observations: bool
) -> tuple[Tensor, Tensor]:
    """[R] advantages of the trained tokens, and the values that they are over."""
    trajectories = tokens.trajectories
    if trajectories is None:
        raise ValueError("gae needs a critic's values")
    trained_S = trajectories.trained_S
    steps_S = trained_S if skip_observations else torch.ones_like(trained_S)
    values_S = trajectories.values_S[steps_S].double()
    sequence_S = trajectories.sequence_S[steps_S]
    is_token_S = trained_S[steps_S]
    rewards_S = terminal_rewards(tokens.rewards_N, sequence_S)
    rewards_S[is_token_S] += tokens.token_rewards_R
    lengths_N = sequence_lengths(tokens)
    lam_N = (
        torch.full((len(lengths_N),), lam, dtype=torch.float64)
        if alpha is None
        else length_adaptive_lambda(lengths_N, alpha)
    )
    advantages_S = gae(rewards_S, values_S, sequence_S, gamma=gamma, lam_N=lam_N)
    return advantages_S[is_token_S], values_S[is_token_S]
