"""What estimators and losses are given: plain tensors, whole batches, no trainer.

Axes: N samples of a step, R trained tokens (sample by sample, in order), S steps of trajectories
(trained tokens and the observations between them), K teachers, B sequences of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engines.algorithms.statistics import LOG_BOUND, bounded

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Trajectories:
    """A critic's values along each sample, from its first trained token to its last."""

    values_S: Tensor
    """value of the state in which token s was chosen"""
    sequence_S: Tensor
    """sample of each step, ascending"""
    trained_S: Tensor
    """bool: whether the token was the model's own; the others are observations"""


@dataclass(frozen=True, slots=True)
class Turns:
    """The step's turns: stretches of trained tokens with observations between them. Axis: U turns.

    Example: a sample of two turns with 2 and 1 tokens, and one of a single turn with 1:
    turn_R [0, 0, 1, 2], sequence_U [0, 0, 1], state_U [0, 1, 0].
    """

    turn_R: Tensor
    """long; turn of each trained token, ascending"""
    sequence_U: Tensor
    """long; sample of each turn, ascending"""
    shares_U: Tensor
    """float64 part of its rollout's reward that a turn earned; the rest is the last turn's"""
    state_U: Tensor
    """long; turns of one number, of one group, answer the same observation"""
    turn_M: Tensor | None = None
    """long; turn of each token of the rollouts that only count, whose turns come last"""


@dataclass(frozen=True, slots=True)
class CountedOnly:
    """Tokens of rollouts that are compared with their group and not trained on, such as those that
    `truncated: mask` leaves out. Axis: M tokens."""

    sequence_M: Tensor
    """long; sample of each token, ascending; these samples have no trained token"""
    token_rewards_M: Tensor
    """float64 reward of each token beside the rollout's own"""


class CriticTarget(Protocol):
    """What the critic of an advantage learns: the return of each token."""

    @property
    def kind(self) -> str: ...
    @property
    def gamma(self) -> float:
        """discount of a step"""
        ...

    @property
    def critic_lam(self) -> float:
        """1: the rewards that followed; lower: relies more on the critic's own later values"""
        ...

    @property
    def skip_observations(self) -> bool:
        """tokens of the environment are not steps"""
        ...


@dataclass(frozen=True, slots=True)
class Components:
    """What each reward of the rubric says of each sample's rollout. Axis: C rewards."""

    scores_NC: Tensor
    """float64, the higher the better"""
    weights_NC: Tensor
    """float64, the same in a group; 0: the reward does not judge it"""
    counts_NC: Tensor | None = None
    """bool: whether the reward counts for the sample's rollout, which one that is `only_right` does
    where it is right; its score is 0 elsewhere. None: each does"""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """A step's whole batch, the same on every rank: so means over it need no communication.

    Example: two samples of one group with 1 and 2 trained tokens: rewards_N [1, 0],
    group_N [0, 0], rollout_N [0, 1], sequence_R [0, 1, 1].
    """

    rewards_N: Tensor
    """float64 reward of each sample's rollout; samples of one rollout hold the same"""
    group_N: Tensor
    """long; samples of one number are compared with each other, wherever they stand"""
    rollout_N: Tensor
    """long; samples of one number came from one generation attempt"""
    sequence_R: Tensor
    """long; sample of each trained token, ascending"""
    logprobs_R: Tensor
    """float64 logprob of each token under the policy before the step"""
    token_rewards_R: Tensor
    """float64 reward of each token beside the rollout's own: -coef x KL, or zeros"""
    trajectories: Trajectories | None = None
    """from a critic, if the algorithm needs one"""
    reference_logprobs_R: Tensor | None = None
    """float64 under the model that the stage started from, if the algorithm needs it"""
    teacher_logprobs_KR: Tensor | None = None
    """from teachers, if the algorithm needs them"""
    teacher_weights_NK: Tensor | None = None
    """how much each sample listens to each teacher; rows sum to 1"""
    turns: Turns | None = None
    """if the algorithm needs them"""
    components: Components | None = None
    """if the algorithm needs them"""
    counted_only: CountedOnly | None = None
    """if there are such rollouts; None: every sample has trained tokens"""


@dataclass(frozen=True, slots=True)
class ComparedTokens:
    """A teacher's likeliest tokens of each place of a micro-batch. Axis: K tokens of a place."""

    logprobs_RK: Tensor
    """the teacher's"""
    student_logprobs_RK: Tensor
    """of the same tokens, under the policy in training; carries the gradient"""
    rest_R: Tensor | None
    """the teacher's logprob of all others together; None where these K are the whole vocabulary"""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. Only `logprobs_R` and what `teacher` says so of carry a gradient."""

    logprobs_R: Tensor
    """under the policy in training"""
    old_logprobs_R: Tensor
    """under the policy that the ratio is taken against"""
    advantages_R: Tensor
    segment_R: Tensor
    """long; sequence of each token, 0 to B - 1"""
    num_trained_B: Tensor
    """trained tokens of each whole sequence, those on other context-parallel ranks among them"""
    cp_group: dist.ProcessGroup | None = None
    """ranks that have the other tokens of the same sequences"""
    teacher: ComparedTokens | None = None
    """for the loss `divergence`"""
    reference_R: Tensor | None = None
    """under the model that the stage started from, if the loss reads it"""
    pair_B: Tensor | None = None
    """long; for a loss of pairs: pair of each sequence, counted from 0"""

    @property
    def log_ratio_R(self) -> Tensor:
        """Present minus old logprob, held within +-20: beyond, a token has no gradient."""
        return bounded(self.logprobs_R - self.old_logprobs_R)

    @property
    def is_extreme_R(self) -> Tensor:
        """bool: where the ratio had to be held."""
        return (self.logprobs_R - self.old_logprobs_R).detach().abs() > LOG_BOUND

    def sequence_mean(self, values_R: Tensor) -> Tensor:
        """Mean over each sequence's trained tokens, given to each of them: [R], differentiable,
        exact when context parallelism splits the sequence. A collective: all ranks call it."""
        from engines.algorithms.sequence_sums import sequence_sums

        sums_B = sequence_sums(
            values_R, self.segment_R, len(self.num_trained_B), group=self.cp_group
        )
        # 0 / 0 of a sequence without tokens is given to none.
        return (sums_B / self.num_trained_B)[self.segment_R]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss of each token, to be minimised; aggregation comes later."""

    loss_R: Tensor
    """carries the gradient"""
    is_clipped_R: Tensor
    """bool: where a bound took the gradient away, or shrank it"""


def sequence_lengths(tokens: StepTokens) -> Tensor:
    """Trained tokens of each sample, [N] long."""
    import torch

    return torch.bincount(tokens.sequence_R, minlength=len(tokens.rewards_N))
