"""How much better a token's rollout is than expected: each estimator's settings, and its formula.

Each class of settings names the function that computes it: [R] float64 of a step's whole batch.
Axes: N samples, R trained tokens, S steps of trajectories, U turns, K teachers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from engines.algorithms.inputs import sequence_lengths
from engines.algorithms.parts import Fraction, Need, Part, PartWithCode, Share, with_settings
from engines.algorithms.statistics import (
    best_and_worst,
    deviations,
    discounted_returns,
    gae,
    group_advantages,
    leave_one_out_advantages,
    lengths,
    of_rollouts,
    per_group,
    per_rollout,
    terminal_rewards,
    totals,
    whitened,
)

if TYPE_CHECKING:
    from torch import Tensor

    from engines.algorithms.inputs import CriticTarget, StepTokens, Turns


CRITIC_TARGETS = "engines.algorithms.advantages:critic_targets"
"""what a critic learns from, of any advantage that needs one"""


def advantages(spec: Advantage, tokens: StepTokens) -> Tensor:
    """[R] float64 advantage of every trained token of the step."""
    raw_R = with_settings("advantage", spec)(tokens)
    return whitened(raw_R) if spec.whiten else raw_R


class GroupAdvantage(PartWithCode):
    """(reward - group mean) / group deviation (GRPO), or without the deviation (Dr.GRPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages:grpo_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["group"]
    std: bool = True
    """divide by the group's standard deviation; turn it off if the rewards' spread differs widely
    between easy and hard problems, as in the agent domain"""
    whiten: bool = False
    """then normalize the whole batch to mean 0 and variance 1"""


def grpo_advantages(tokens: StepTokens, *, std: bool) -> Tensor:
    """GRPO (arXiv 2402.03300) with the deviation, Dr.GRPO (arXiv 2503.20783) without it."""
    return of_rollouts(tokens, partial(group_advantages, should_normalize_std=std))


class RlooAdvantage(PartWithCode):
    """reward - mean of the group's other rollouts."""

    code: ClassVar[str] = "engines.algorithms.advantages:rloo_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["rloo"]
    whiten: bool = False


def rloo_advantages(tokens: StepTokens) -> Tensor:
    """RLOO (arXiv 2402.14740): each rollout is compared with the others of its group."""
    return of_rollouts(tokens, leave_one_out_advantages)


class OpoAdvantage(PartWithCode):
    """reward - mean of the group's rewards, weighted by the rollouts' lengths (OPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages:opo_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["opo"]
    whiten: bool = False


def opo_advantages(tokens: StepTokens) -> Tensor:
    """The baseline that makes the gradient's variance smallest (arXiv 2505.23585).

    That is the mean of rewards weighted by the squared norm of each rollout's gradient, which grows
    with its length.
    Example: rewards 1, 0 of 3 and 1 tokens -> baseline 0.75, advantages 0.25, -0.75.
    """
    lengths_N = lengths(tokens)
    # Exactly 0 where the rewards of a group are equal; a mean of these moves the baseline only.
    above_mean_N = per_rollout(tokens, totals(tokens), deviations)
    weighted_N = per_rollout(tokens, lengths_N * above_mean_N, per_group)
    tokens_of_group_N = per_rollout(tokens, lengths_N, per_group).clamp(min=1)
    return (above_mean_N - weighted_N / tokens_of_group_N)[tokens.sequence_R]


class GigpoAdvantage(PartWithCode):
    """`group`'s, and how good each turn was among those that answered the same (GiGPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages:gigpo_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread", "turns")
    kind: Literal["gigpo"]
    gamma: Share = 0.95
    """discount per turn of what later turns earn"""
    turn_weight: float = Field(default=1.0, ge=0)
    """of the second term; 0: `group`"""
    std: bool = True
    """divide each term by its standard deviation"""
    whiten: bool = False


def gigpo_advantages(tokens: StepTokens, *, gamma: float, turn_weight: float, std: bool) -> Tensor:
    """`group`'s advantage + turn_weight x that of each turn's return among turns in its state.

    Feng et al. 2025, arXiv 2505.10978. A state is an observation: what stands between the turn
    before and this one, or the prompt. A turn whose state no other turn of its group shares has
    exactly 0 of the second term.
    Example without `std`: rollouts of one turn each, rewards 1, 0 -> +-0.5 + 0.5 = +-1.
    """
    turns = tokens.turns
    assert turns is not None
    returns_U = discounted_returns(
        _turn_rewards(tokens, turns), turns.sequence_U, len(tokens.rewards_N), gamma=gamma
    )
    of_turn_U = group_advantages(returns_U, turns.state_U, should_normalize_std=std)
    return grpo_advantages(tokens, std=std) + turn_weight * of_turn_U[turns.turn_R]


def _turn_rewards(tokens: StepTokens, turns: Turns) -> Tensor:
    """[U] what each turn earned: its own part, its tokens' rewards, and at the end what is left."""
    rest_N = tokens.rewards_N.index_add(0, turns.sequence_U, -turns.shares_U)
    own_U = turns.shares_U.index_add(0, turns.turn_R, tokens.token_rewards_R)
    if tokens.counted_only is not None and turns.turn_M is not None:
        own_U.index_add_(0, turns.turn_M, tokens.counted_only.token_rewards_M)
    return own_U + terminal_rewards(rest_N, turns.sequence_U)


class GdpoAdvantage(PartWithCode):
    """Each reward of the rubric normalised in its group by itself, then their sum (GDPO)."""

    code: ClassVar[str] = "engines.algorithms.advantages:gdpo_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("batch", "components")
    kind: Literal["gdpo"]
    whiten: bool = True
    """without it, more rewards make larger advantages"""


def gdpo_advantages(tokens: StepTokens) -> Tensor:
    """Sum of weight x (score - group mean) / group deviation, of each reward (arXiv 2601.05242).

    Rollouts whose sums are equal differ where their parts do. A reward that counts for some
    rollouts alone is normalised among these; the others have 0 of it.
    Example: scores 1, 0, 0 and 0, 1, 1 of weights 1 and 0.5 -> 1.155 - 0.577 = 0.577 of the first,
    -0.289 of the others.
    """
    import torch

    made = tokens.components
    if made is None:
        raise ValueError("gdpo needs what each reward of the rubric says")
    normalised = partial(group_advantages, should_normalize_std=True)
    of_each: list[Tensor] = []
    for c, scores_N in enumerate(made.scores_NC.T):
        among = tokens
        if made.counts_NC is not None:  # those for which it does not count: 0 each, in own groups
            among = replace(tokens, group_N=2 * tokens.group_N + ~made.counts_NC[:, c])
            scores_N = scores_N.where(made.counts_NC[:, c], 0.0)
        of_each.append(per_rollout(among, scores_N, normalised))
    return (torch.stack(of_each, 1) * made.weights_NC).sum(1)[tokens.sequence_R]


class ReinforcePlusPlusAdvantage(PartWithCode):
    """Whitened discounted return of each token, no group (REINFORCE++, arXiv 2501.03262)."""

    code: ClassVar[str] = "engines.algorithms.advantages:reinforce_plus_plus_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("batch",)
    kind: Literal["reinforce++"]
    gamma: Share = 1.0
    """discount per token; below 1, the reward hardly reaches the first tokens of a long reply"""
    whiten: bool = True


def reinforce_plus_plus_advantages(tokens: StepTokens, *, gamma: float) -> Tensor:
    """Discounted returns of tokens, without a group."""
    rewards_R = tokens.token_rewards_R + terminal_rewards(tokens.rewards_N, tokens.sequence_R)
    return discounted_returns(rewards_R, tokens.sequence_R, len(tokens.rewards_N), gamma=gamma)


class ReinforcePlusPlusBaselineAdvantage(PartWithCode):
    """reward - group mean, then whitened over the batch (REINFORCE++-baseline)."""

    code: ClassVar[str] = "engines.algorithms.advantages:reinforce_plus_plus_baseline_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["reinforce++-baseline"]
    whiten: bool = True


def reinforce_plus_plus_baseline_advantages(tokens: StepTokens) -> Tensor:
    """The group's mean is the baseline; whitening over the batch sets the scale."""
    # A token's own KL counts for that token; only the rollout's reward has a baseline.
    centred_N = per_rollout(tokens, tokens.rewards_N, deviations)
    return centred_N[tokens.sequence_R] + tokens.token_rewards_R


class GaeAdvantage(PartWithCode):
    """Generalised advantage estimation with a critic's value of each token (PPO, SAO)."""

    code: ClassVar[str] = "engines.algorithms.advantages:gae_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("critic",)
    kind: Literal["gae"]
    gamma: Share = 1.0
    lam: Fraction = 0.95
    """lambda of the policy's advantages; 1: unbiased; lower: relies more on the critic"""
    critic_lam: Fraction = 1.0
    """lambda of the returns that the critic learns from (VC-PPO, arXiv 2503.01491: 1)"""
    alpha: PositiveFloat | None = None
    """lam = 1 - 1 / (alpha x trained tokens) instead of `lam`; SAO 1.5, VAPO 0.05"""
    skip_observations: bool = True
    """tokens of the environment are not steps: the value after a turn is that at the start of the
    next turn; off: every token is a step"""
    whiten: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.code, CRITIC_TARGETS)


def gae_advantages(
    tokens: StepTokens,
    *,
    gamma: float,
    lam: float,
    critic_lam: float,
    alpha: float | None,
    skip_observations: bool,
) -> Tensor:
    """Generalised advantage estimation from a critic's values (arXiv 1506.02438)."""
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
    import torch

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


class PairsAdvantage(PartWithCode):
    """1 of a group's best rollout, -1 of its worst: what a preference loss compares."""

    code: ClassVar[str] = "engines.algorithms.advantages:pair_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("spread",)
    kind: Literal["pairs"]
    whiten: ClassVar[bool] = False


def pair_advantages(tokens: StepTokens) -> Tensor:
    """Return which rollout of its group is the better one of a pair, and which the worse one."""
    return of_rollouts(tokens, best_and_worst)


class DistillationAdvantage(PartWithCode):
    """Teacher's - student's logprob of each sampled token; rewards are not used."""

    code: ClassVar[str] = "engines.algorithms.advantages:opd_advantages"
    needs: ClassVar[tuple[Need, ...]] = ("teachers",)
    kind: Literal["distillation"]
    clip: PositiveFloat | None = 5.0
    """largest absolute advantage of a token, in nats; None: no limit"""
    whiten: bool = False


def opd_advantages(tokens: StepTokens, *, clip: float | None) -> Tensor:
    """On-policy distillation: how much likelier a token is to the teachers than to the student."""
    if tokens.teacher_logprobs_KR is None or tokens.teacher_weights_NK is None:
        raise ValueError("distillation needs teachers' logprobs and weights")
    return distillation_advantages(
        tokens.teacher_logprobs_KR,
        tokens.logprobs_R,
        tokens.teacher_weights_NK,
        tokens.sequence_R,
        clip=clip,
    )


def distillation_advantages(
    teacher_logprobs_KR: Tensor,
    student_logprobs_R: Tensor,
    teacher_weights_NK: Tensor,
    sequence_R: Tensor,
    *,
    clip: float | None,
) -> Tensor:
    """[R] sum over teachers of weight x (teacher's - student's logprob), within +-clip.

    The sampled-token form: its policy gradient is that of -KL(student || teacher). One teacher a
    sample (weights 1 and 0, e.g. by domain) is MOPD (arXiv 2606.30406). No gradient.
    Example: logprobs -1 (teacher) and -3 (student) -> 2: the student should say it more often.
    """
    import torch

    gap_KR = teacher_logprobs_KR - student_logprobs_R
    # A teacher that a sample does not listen to may not have scored it: NaN x 0 must be 0.
    weights_KR = teacher_weights_NK.T[:, sequence_R]
    advantages_R = torch.where(weights_KR > 0, gap_KR * weights_KR, 0.0).sum(0).detach()
    return advantages_R if clip is None else advantages_R.clamp(-clip, clip)


class CustomAdvantage(Part):
    """Your own `def advantage(tokens: StepTokens, **options) -> Tensor` ([R], no gradient)."""

    kind: Literal["custom"]
    path: str
    """`module:function`"""
    options: dict[str, Any] = Field(default_factory=dict)
    needs: tuple[Need, ...] = ("spread",)
    """what it reads; without `spread` every group is kept, and a group of one is enough"""
    whiten: bool = False
    # Its critic learns the sum of the rewards that follow a token.
    gamma: ClassVar[float] = 1.0
    critic_lam: ClassVar[float] = 1.0
    skip_observations: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path, CRITIC_TARGETS) if "critic" in self.needs else (self.path,)


Advantage = Annotated[
    GroupAdvantage
    | RlooAdvantage
    | OpoAdvantage
    | GigpoAdvantage
    | GdpoAdvantage
    | ReinforcePlusPlusAdvantage
    | ReinforcePlusPlusBaselineAdvantage
    | GaeAdvantage
    | PairsAdvantage
    | DistillationAdvantage
    | CustomAdvantage,
    Field(discriminator="kind"),
]
