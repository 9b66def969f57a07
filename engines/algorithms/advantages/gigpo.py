"""GiGPO's advantages: a rollout against its group, and a turn against turns in its state.

Feng et al. 2025, arXiv 2505.10978. A state is an observation: what stands between the turn before
and this one, or the prompt. Axes: N samples, R trained tokens, U turns.
"""

from __future__ import annotations

from torch import Tensor

from engines.algorithms.advantages.group import advantages as of_group
from engines.algorithms.inputs import StepTokens, Turns
from engines.algorithms.statistics.gae import discounted_returns, terminal_rewards
from engines.algorithms.statistics.group_relative import group_advantages


def advantages(tokens: StepTokens, *, gamma: float, turn_weight: float, std: bool) -> Tensor:
    """`group`'s advantage + turn_weight x that of each turn's return among turns in its state.

    A turn whose state no other turn of its group shares has exactly 0 of the second term.
    Example without `std`: rollouts of one turn each, rewards 1, 0 -> +-0.5 + 0.5 = +-1.
    """
    turns = tokens.turns
    assert turns is not None
    returns_U = discounted_returns(
        _rewards(tokens, turns), turns.sequence_U, len(tokens.rewards_N), gamma=gamma
    )
    of_turn_U = group_advantages(returns_U, turns.state_U, should_normalize_std=std)
    return of_group(tokens, std=std) + turn_weight * of_turn_U[turns.turn_R]


def _rewards(tokens: StepTokens, turns: Turns) -> Tensor:
    """[U] what each turn earned: its own part, its tokens' rewards, and at the end what is left."""
    rest_N = tokens.rewards_N.index_add(0, turns.sequence_U, -turns.shares_U)
    own_U = turns.shares_U.index_add(0, turns.turn_R, tokens.token_rewards_R)
    if tokens.counted_only is not None and turns.turn_M is not None:
        own_U.index_add_(0, turns.turn_M, tokens.counted_only.token_rewards_M)
    return own_U + terminal_rewards(rest_N, turns.sequence_U)
