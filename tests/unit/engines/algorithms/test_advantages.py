"""Advantage estimators against numbers worked out by hand."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from engines.algorithms.advantages import (
    GaeAdvantage,
    GroupAdvantage,
    ReinforcePlusPlusAdvantage,
    ReinforcePlusPlusBaselineAdvantage,
    advantages,
    critic_targets,
    distillation_advantages,
    length_adaptive_lambda,
)
from engines.algorithms.inputs import StepTokens, Trajectories, sequence_lengths
from engines.algorithms.losses import overlong_penalty
from engines.algorithms.statistics import (
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    terminal_rewards,
    whitened,
)

pytestmark = pytest.mark.unit


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def step(
    rewards: list[float],
    groups: list[int],
    lengths: list[int],
    *,
    rollouts: list[int] | None = None,
    token_rewards: list[float] | None = None,
    trajectories: Trajectories | None = None,
) -> StepTokens:
    num = sum(lengths)
    return StepTokens(
        rewards_N=doubles(*rewards),
        group_N=torch.tensor(groups),
        rollout_N=torch.tensor(rollouts or list(range(len(rewards)))),
        sequence_R=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        logprobs_R=torch.zeros(num, dtype=torch.float64),
        token_rewards_R=doubles(*(token_rewards or [0.0] * num)),
        trajectories=trajectories,
    )


# Relative to the group

GROUPS = torch.tensor([0, 1, 0, 0, 1, 0])
REWARDS = doubles(1, 2, 0, 0, 4, 1)


@pytest.mark.proof("advantage group", "hand", numbers=6)
def test_group_advantages_by_hand() -> None:
    # Group 0: rewards 1, 0, 0, 1, mean 0.5. Group 1: 2, 4, mean 3.
    got = group_advantages(REWARDS, GROUPS, should_normalize_std=False)
    assert got.tolist() == [0.5, -1, -0.5, -0.5, 1, 0.5]


@pytest.mark.proof("advantage group", "hand", numbers=6)
def test_normalised_advantages_by_hand() -> None:
    # Group 0: squares sum to 4 x 0.25 = 1, over n - 1 = 3: std 0.57735; 0.5 / 0.57735 = 0.86603.
    # Group 1: squares sum to 2, over 1: std 1.41421; 1 / 1.41421 = 0.70711.
    got = group_advantages(REWARDS, GROUPS, should_normalize_std=True)
    wanted = [0.86603, -0.70711, -0.86603, -0.86603, 0.70711, 0.86603]
    assert got.tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.proof("advantage rloo", "hand", numbers=6)
def test_leaving_one_out_by_hand() -> None:
    # Group 0: 1 - (0 + 0 + 1) / 3 = 2/3 and 0 - (1 + 0 + 1) / 3 = -2/3. Group 1: 2 - 4, 4 - 2.
    got = leave_one_out_advantages(REWARDS, GROUPS)
    assert got.tolist() == pytest.approx([2 / 3, -2, -2 / 3, -2 / 3, 2, 2 / 3])


@pytest.mark.parametrize("kind", ["group", "plain", "rloo"])
@pytest.mark.proof("advantage group", "edge")
@pytest.mark.proof("advantage rloo", "edge")
def test_equal_rewards_and_lone_samples_have_no_advantage(kind: str) -> None:
    # 0.1 three times: its mean in floating point is not 0.1, and yet nothing may be learned.
    rewards = doubles(0.1, 0.1, 0.1, 7, -0.1, -0.1, -0.1)
    groups = torch.tensor([0, 0, 0, 1, 2, 2, 2])
    got = (
        leave_one_out_advantages(rewards, groups)
        if kind == "rloo"
        else group_advantages(rewards, groups, should_normalize_std=kind == "group")
    )
    assert got.tolist() == [0] * 7


def test_a_step_without_rollouts_has_no_advantages() -> None:
    none = torch.tensor([], dtype=torch.long)
    assert group_advantages(doubles(), none, should_normalize_std=True).tolist() == []
    assert leave_one_out_advantages(doubles(), none).tolist() == []


def test_advantages_follow_their_samples_through_any_order() -> None:
    draw = random.Random(0)
    rewards = doubles(*(draw.random() for _ in range(40)))
    groups = torch.arange(40) % 7
    plain = group_advantages(rewards, groups, should_normalize_std=True)
    order = torch.tensor(draw.sample(range(40), 40))
    shuffled = group_advantages(rewards[order], groups[order], should_normalize_std=True)
    assert shuffled.tolist() == pytest.approx(plain[order].tolist(), abs=1e-12)


@pytest.mark.proof("advantage group", "hand", numbers=4)
def test_a_rollout_counts_once_in_its_group_however_many_samples_it_has() -> None:
    # Rollouts 0 (two samples) and 1: mean (1 + 0) / 2, not (1 + 1 + 0) / 3.
    tokens = step([1, 1, 0], [0, 0, 0], [1, 2, 1], rollouts=[0, 0, 1])
    got = advantages(GroupAdvantage(kind="group", std=False), tokens)
    assert got.tolist() == [0.5, 0.5, 0.5, -0.5]


def test_a_kl_in_the_reward_counts_for_the_whole_rollout() -> None:
    # Rollout 0: 1 - 0.2 - 0.1 over its two samples; rollout 1: 0 - 0.1. Mean 0.3.
    tokens = step(
        [1, 1, 0],
        [0, 0, 0],
        [1, 2, 1],
        rollouts=[0, 0, 1],
        token_rewards=[-0.2, -0.1, 0, -0.1],
    )
    got = advantages(GroupAdvantage(kind="group", std=False), tokens)
    assert got.tolist() == pytest.approx([0.4, 0.4, 0.4, -0.4])


# By token


@pytest.mark.proof("advantage reinforce++", "hand", numbers=3)
def test_reinforce_plus_plus_by_hand() -> None:
    # Returns with gamma 0.5: sample 0 of tokens (0, 1): 0.5, 1; sample 1: -1. Mean 1/6.
    # Squares (1/3)^2 + (5/6)^2 + (7/6)^2 = 2.16667, over 2: std 1.04083.
    tokens = step([1, -1], [0, 1], [2, 1])
    spec = ReinforcePlusPlusAdvantage(kind="reinforce++", gamma=0.5)
    got = advantages(spec, tokens)
    assert got.tolist() == pytest.approx([0.32026, 0.80064, -1.12090], abs=1e-5)


def test_reinforce_plus_plus_gives_a_token_the_kl_that_is_to_come() -> None:
    # Rewards a token: -0.1, -0.2 + 1 and -0.4 - 1.
    tokens = step([1, -1], [0, 1], [2, 1], token_rewards=[-0.1, -0.2, -0.4])
    raw = discounted_returns(
        tokens.token_rewards_R + terminal_rewards(tokens.rewards_N, tokens.sequence_R),
        tokens.sequence_R,
        2,
        gamma=1.0,
    )
    assert raw.tolist() == pytest.approx([0.7, 0.8, -1.4])


@pytest.mark.proof("advantage reinforce++-baseline", "hand", numbers=4)
def test_reinforce_plus_plus_baseline_by_hand() -> None:
    # Centred 0.5 (1 token) and -0.5 (3 tokens), mean -0.25, squares 0.5625 + 3 x 0.0625 = 0.75,
    # over 3: std 0.5.
    spec = ReinforcePlusPlusBaselineAdvantage(kind="reinforce++-baseline")
    got = advantages(spec, step([1, 0], [0, 0], [1, 3]))
    assert got.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])


@pytest.mark.proof("advantage reinforce++-baseline", "hand", numbers=3)
def test_reinforce_plus_plus_baseline_charges_each_token_its_own_kl() -> None:
    spec = ReinforcePlusPlusBaselineAdvantage(kind="reinforce++-baseline", whiten=False)
    got = advantages(spec, step([1, 0], [0, 0], [1, 2], token_rewards=[-0.1, -0.2, 0]))
    assert got.tolist() == pytest.approx([0.4, -0.7, -0.5])


@pytest.mark.proof("whitening", "hand", numbers=3)
def test_whitening_by_hand() -> None:
    assert whitened(doubles(1, 2, 3)).tolist() == pytest.approx([-1, 0, 1])
    assert whitened(doubles(5)).tolist() == [0]
    assert whitened(doubles(2, 2)).tolist() == [0, 0]


# With a critic


@pytest.mark.proof("advantage gae", "hand", numbers=6)
def test_gae_by_hand() -> None:
    # Trajectory 0, gamma 0.9, lam 0.5: d = 0 + 0.9 x 0.25 - 0.5 = -0.275 and 1 - 0.25 = 0.75;
    # A = -0.275 + 0.45 x 0.75 = 0.0625, 0.75. Trajectory 1, lam 1: 2 - 1 = 1.
    # Trajectory 2, lam 0: d = 0.9 x 2 - 1 = 0.8, 0.9 x 3 - 2 = 0.7, -3.
    got = gae(
        doubles(0, 1, 2, 0, 0, 0),
        doubles(0.5, 0.25, 1, 1, 2, 3),
        torch.tensor([0, 0, 1, 2, 2, 2]),
        gamma=0.9,
        lam_N=doubles(0.5, 1, 0),
    )
    assert got.tolist() == pytest.approx([0.0625, 0.75, 1, 0.8, 0.7, -3])


@pytest.mark.proof("advantage gae", "limit")
def test_gae_with_lambda_one_is_the_return_less_the_value() -> None:
    values, sequence = torch.rand(20, dtype=torch.float64), torch.arange(4).repeat_interleave(5)
    rewards = torch.rand(20, dtype=torch.float64)
    got = gae(rewards, values, sequence, gamma=0.97, lam_N=doubles(1, 1, 1, 1))
    returns = discounted_returns(rewards, sequence, 4, gamma=0.97)
    assert got.tolist() == pytest.approx((returns - values).tolist())


@pytest.mark.proof("advantage gae", "edge")
def test_gae_of_no_steps_and_of_trajectories_without_steps() -> None:
    empty = gae(doubles(), doubles(), torch.tensor([], dtype=torch.long), gamma=1, lam_N=doubles())
    assert empty.tolist() == []
    got = gae(doubles(1), doubles(0), torch.tensor([1]), gamma=1, lam_N=doubles(1, 1, 1))
    assert got.tolist() == [1]


def test_a_sample_without_tokens_has_length_zero_wherever_it_stands() -> None:
    assert sequence_lengths(step([0, 0, 0, 0], [0, 0, 0, 0], [0, 2, 1, 0])).tolist() == [0, 2, 1, 0]


@pytest.mark.proof("lambda by length", "hand", numbers=3)
def test_length_adaptive_lambda_by_hand() -> None:
    # 1 - 1/6, 1 - 1/1.5, and at least 0 for alpha 0.5 and one token.
    assert length_adaptive_lambda(torch.tensor([4, 1]), 1.5).tolist() == pytest.approx(
        [5 / 6, 1 / 3]
    )
    assert length_adaptive_lambda(torch.tensor([1]), 0.5).tolist() == [0]


def with_observation() -> StepTokens:
    """One sample: two trained tokens, an observation of one token, a last trained token."""
    return step(
        [1],
        [0],
        [3],
        trajectories=Trajectories(
            values_S=doubles(0.1, 0.2, 5.0, 0.6),
            sequence_S=torch.zeros(4, dtype=torch.long),
            trained_S=torch.tensor([True, True, False, True]),
        ),
    )


@pytest.mark.proof("advantage gae", "hand", numbers=3)
def test_observations_take_no_step() -> None:
    # Values 0.1, 0.2, 0.6; d = 0.1, 0.4, 0.4; lam 0.5: 0.4; 0.4 + 0.2 = 0.6; 0.1 + 0.3 = 0.4.
    spec = GaeAdvantage(kind="gae", lam=0.5, whiten=False)
    got, targets = advantages(spec, with_observation()), critic_targets(spec, with_observation())
    assert got.tolist() == pytest.approx([0.4, 0.6, 0.4])
    # The critic's own decay is 1: it learns the reward itself.
    assert targets.tolist() == pytest.approx([1, 1, 1])


def test_observations_may_be_steps_and_never_carry_the_reward() -> None:
    # d = 0.1, 4.8, -4.4, 0.4; A = 0.4; -4.2; 2.7; 1.45, of which the trained ones are kept.
    spec = GaeAdvantage(kind="gae", lam=0.5, skip_observations=False, whiten=False)
    got = advantages(spec, with_observation())
    assert got.tolist() == pytest.approx([1.45, 2.7, 0.4])


def test_sao_bootstraps_by_the_length_of_what_the_model_wrote() -> None:
    # Three trained tokens, alpha 1.5: lam = 1 - 1/4.5 = 0.77778.
    spec = GaeAdvantage(kind="gae", alpha=1.5, whiten=False)
    got = advantages(spec, with_observation())
    lam = 1 - 1 / 4.5
    last = 0.4
    middle = 0.4 + lam * last
    assert got.tolist() == pytest.approx([0.1 + lam * middle, middle, last])


def test_gae_without_a_critic_is_refused() -> None:
    with pytest.raises(ValueError, match="critic"):
        advantages(GaeAdvantage(kind="gae"), step([1], [0], [1]))


# From teachers


@pytest.mark.proof("advantage distillation", "hand", numbers=6)
def test_distillation_by_hand() -> None:
    # Sample 0 listens to teacher 0, sample 1 to both by halves; teacher 1 never scored sample 0.
    teachers = torch.tensor([[-1.0, -2.0, -9.0], [math.nan, -4.0, -1.0]], dtype=torch.float64)
    weights = doubles(1, 0, 0.5, 0.5).view(2, 2)
    student, sequence = doubles(-3, -3, -2), torch.tensor([0, 1, 1])
    args = (teachers, student, weights, sequence)
    # -1 + 3 = 2; (1 - 1) / 2 = 0; (-7 + 1) / 2 = -3.
    assert distillation_advantages(*args, clip=None).tolist() == [2, 0, -3]
    assert distillation_advantages(*args, clip=1.5).tolist() == [1.5, 0, -1.5]


# By length


@pytest.mark.proof("overlong", "hand", numbers=5)
def test_the_overlong_penalty_by_hand() -> None:
    lengths, budgets = torch.tensor([10, 80, 90, 100, 120]), torch.full((5,), 100)
    got = overlong_penalty(lengths, budgets, margin=0.2)
    assert got.tolist() == pytest.approx([0, 0, -0.5, -1, -1])
