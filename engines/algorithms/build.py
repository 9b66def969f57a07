"""From a spec's parts to the functions that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engines.algorithms import choices
from engines.algorithms.cispo import cispo_loss
from engines.algorithms.clip import clip_loss
from engines.algorithms.dis import dis_loss
from engines.algorithms.distillation import distillation_advantages
from engines.algorithms.gae import (
    discounted_returns,
    gae,
    length_adaptive_lambda,
    terminal_rewards,
)
from engines.algorithms.group_relative import group_advantages, leave_one_out_advantages
from engines.algorithms.gspo import gspo_loss
from engines.algorithms.inputs import LossInputs, PolicyLoss, StepTokens, sequence_lengths
from engines.algorithms.reinforce import reinforce_loss
from engines.algorithms.whitening import whitened
from infra.hooks import check_options, resolve

LossFunction = Callable[[LossInputs], PolicyLoss]


def advantages(spec: choices.Advantage, tokens: StepTokens) -> Tensor:
    """[R] float64 advantage of every trained token of the step."""
    raw_R = _advantages(spec, tokens)
    return whitened(raw_R) if spec.whiten else raw_R


def _advantages(spec: choices.Advantage, tokens: StepTokens) -> Tensor:
    match spec:
        case choices.GroupAdvantage():
            return _of_rollouts(tokens, partial(group_advantages, should_normalize_std=spec.std))
        case choices.RlooAdvantage():
            return _of_rollouts(tokens, leave_one_out_advantages)
        case choices.ReinforcePlusPlusAdvantage():
            rewards_R = tokens.token_rewards_R + terminal_rewards(
                tokens.rewards_N, tokens.sequence_R
            )
            num = len(tokens.rewards_N)
            return discounted_returns(rewards_R, tokens.sequence_R, num, gamma=spec.gamma)
        case choices.ReinforcePlusPlusBaselineAdvantage():
            # A token's own KL counts for that token; only the rollout's reward has a baseline.
            centred_N = _per_rollout(
                tokens, tokens.rewards_N, partial(group_advantages, should_normalize_std=False)
            )
            return centred_N[tokens.sequence_R] + tokens.token_rewards_R
        case choices.GaeAdvantage():
            return gae_of(spec, tokens)[0]
        case choices.DistillationAdvantage():
            if tokens.teacher_logprobs_KR is None or tokens.teacher_weights_NK is None:
                raise ValueError("distillation needs teachers' logprobs and weights")
            return distillation_advantages(
                tokens.teacher_logprobs_KR,
                tokens.logprobs_R,
                tokens.teacher_weights_NK,
                tokens.sequence_R,
                clip=spec.clip,
            )
        case choices.CustomAdvantage():
            return custom("advantage", spec.path, spec.options)(tokens)


def gae_of(spec: choices.GaeAdvantage, tokens: StepTokens) -> tuple[Tensor, Tensor]:
    """(advantages, what the critic should have said), both [R] float64."""
    trajectories = tokens.trajectories
    if trajectories is None:
        raise ValueError("gae needs a critic's values")
    trained_S = trajectories.trained_S
    steps_S = trained_S if spec.skip_observations else torch.ones_like(trained_S)
    values_S = trajectories.values_S[steps_S].double()
    sequence_S = trajectories.sequence_S[steps_S]
    is_token_S = trained_S[steps_S]
    rewards_S = terminal_rewards(tokens.rewards_N, sequence_S)
    rewards_S[is_token_S] += tokens.token_rewards_R
    lengths_N = sequence_lengths(tokens)
    lam_N = (
        torch.full((len(lengths_N),), spec.lam, dtype=torch.float64)
        if spec.alpha is None
        else length_adaptive_lambda(lengths_N, spec.alpha)
    )
    critic_lam_N = torch.full_like(lam_N, spec.critic_lam)
    advantages_S = gae(rewards_S, values_S, sequence_S, gamma=spec.gamma, lam_N=lam_N)
    errors_S = gae(rewards_S, values_S, sequence_S, gamma=spec.gamma, lam_N=critic_lam_N)
    return advantages_S[is_token_S], (errors_S + values_S)[is_token_S]


def _of_rollouts(tokens: StepTokens, estimate: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[R] one advantage a rollout, of its reward and the rewards of all its tokens."""
    num_rollouts = int(tokens.rollout_N.max()) + 1
    of_tokens = tokens.rewards_N.new_zeros(num_rollouts).index_add(
        0, tokens.rollout_N[tokens.sequence_R], tokens.token_rewards_R
    )
    totals_N = tokens.rewards_N + of_tokens[tokens.rollout_N]
    return _per_rollout(tokens, totals_N, estimate)[tokens.sequence_R]


def _per_rollout(
    tokens: StepTokens, values_N: Tensor, estimate: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """[N] an estimate over rollouts: one counts once in its group, however many samples it has."""
    num_samples = len(values_N)
    place_N = torch.arange(num_samples)
    numbers, member_N = tokens.rollout_N.unique(return_inverse=True)
    first = torch.full((len(numbers),), num_samples).scatter_reduce(0, member_N, place_N, "amin")
    return estimate(values_N[first], tokens.group_N[first])[member_N]


def policy_loss(spec: choices.Loss) -> LossFunction:
    """The loss of each token."""
    match spec:
        case choices.ClipLoss():
            return partial(
                clip_loss,
                clip_low=spec.clip_low,
                clip_high=spec.clip_high,
                dual_clip=spec.dual_clip,
            )
        case choices.GspoLoss():
            return partial(gspo_loss, clip_low=spec.clip_low, clip_high=spec.clip_high)
        case choices.CispoLoss():
            return partial(cispo_loss, clip_low=spec.clip_low, clip_high=spec.clip_high)
        case choices.DisLoss():
            return partial(dis_loss, clip_low=spec.clip_low, clip_high=spec.clip_high)
        case choices.ReinforceLoss():
            return reinforce_loss
        case choices.CustomLoss():
            return custom("loss", spec.path, spec.options)


def custom(kind: str, path: str, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The user's function with its options. Raises InputError for a wrong path or option."""
    function = resolve(kind, path, {})
    check_options(kind, path, function, options)
    return partial(function, **options)
