"""How an advantage changes a token's logprob: each loss's settings, and its formula.

Each class of settings names the function that computes it, of one micro-batch. Axis: R trained
tokens. The critic's loss and that of supervised learning have no settings of their own here.

Terms beside the policy's: for moving away from the first model, and for overlong replies.

KL(policy || reference) is estimated from the sampled tokens (Schulman, "Approximating KL").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from engines.algorithms.divergences import DivergenceLoss
from engines.algorithms.inputs import LossInputs, PolicyLoss
from engines.algorithms.parts import Need, Part, PartWithCode, Share, with_settings
from engines.algorithms.preference_losses import Answers, Compared, Dpo, Ipo, dpo_loss, ipo_loss
from engines.algorithms.statistics import LOG_BOUND, bounded

if TYPE_CHECKING:
    from torch import Tensor


LossFunction = Callable[[LossInputs], PolicyLoss]


def policy_loss(spec: Loss) -> LossFunction:
    """The loss of each token."""
    return with_settings("loss", spec)


class ClipLoss(PartWithCode):
    """-min(ratio x A, clip(ratio, 1 - clip_low, 1 + clip_high) x A) (PPO; asymmetric in DAPO)."""

    code: ClassVar[str] = "engines.algorithms.losses:clip_loss"
    kind: Literal["clip"]
    clip_low: Share = 0.2
    """ratio is clipped below 1 - clip_low"""
    clip_high: PositiveFloat = 0.28
    """ratio is clipped above 1 + clip_high"""
    dual_clip: float | None = Field(default=None, gt=1)
    """a bad action's loss is at most this times |A|; 3 to 10 makes sense; None: no bound"""


def clip_loss(
    tokens: LossInputs, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> PolicyLoss:
    """-min(ratio x A, clip(ratio, 1 - clip_low, 1 + clip_high) x A) of each token.

    The clipped surrogate of PPO (arXiv 1707.06347), asymmetric, and its dual bound.
    With `dual_clip` c > 1, a bad action's loss is at most c x |A| (arXiv 1912.09729): a token that
    became far more likely since it was sampled must not dominate.
    Example: ratio 1.5, A = 1, clip_high 0.28 -> loss -1.28, clipped, no gradient.
    """
    import torch

    ratio_R, advantages_R = tokens.log_ratio_R.exp(), tokens.advantages_R
    plain_R = ratio_R * advantages_R
    bounded_R = ratio_R.clamp(1 - clip_low, 1 + clip_high) * advantages_R
    loss_R = -torch.minimum(plain_R, bounded_R)
    is_clipped_R = bounded_R < plain_R
    if dual_clip is not None:
        ceiling_R = -dual_clip * advantages_R
        is_over_R = (advantages_R < 0) & (loss_R > ceiling_R)
        loss_R = torch.where(is_over_R, ceiling_R, loss_R)
        is_clipped_R = is_clipped_R | is_over_R
    return PolicyLoss(loss_R, is_clipped_R)


class GspoLoss(PartWithCode):
    """The clipped loss with one ratio per sequence; its clip range is about 1000 times narrower."""

    code: ClassVar[str] = "engines.algorithms.losses:gspo_loss"
    kind: Literal["gspo"]
    clip_low: Share = 3e-4
    clip_high: PositiveFloat = 4e-4


def gspo_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """The clipped loss with ratio exp(mean over the sequence of the log ratio) at every token.

    Group sequence policy optimisation (arXiv 2507.18071).
    The mean is over the whole sequence, on whichever ranks it lies, and carries the gradient.
    Example: token ratios 2 and 1/2 -> sequence ratio 1 at both.
    """
    import torch

    mean_R = tokens.sequence_mean(tokens.log_ratio_R)
    as_one = replace(tokens, logprobs_R=mean_R, old_logprobs_R=torch.zeros_like(mean_R))
    return clip_loss(as_one, clip_low=clip_low, clip_high=clip_high, dual_clip=None)


class CispoLoss(PartWithCode):
    """-clip(ratio) x A x logprob, the clipped ratio constant."""

    code: ClassVar[str] = "engines.algorithms.losses:cispo_loss"
    kind: Literal["cispo"]
    clip_low: Share = 1.0
    """1: no lower bound, as in MiniMax-M1"""
    clip_high: PositiveFloat = 4.0
    """the ratio is clipped at 1 + clip_high; 3 to 7 makes sense"""


def cispo_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """-clip(ratio, 1 - clip_low, 1 + clip_high) x A x logprob, the clipped ratio held constant.

    Clipped importance weights (MiniMax-M1, arXiv 2506.13585): every token keeps a gradient.
    Example: ratio 8, clip_high 4, A = 1 -> gradient of the logprob is -5, not 0.
    """
    ratio_R = tokens.log_ratio_R.detach().exp()
    weight_R = ratio_R.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(-weight_R * tokens.advantages_R * tokens.logprobs_R, weight_R != ratio_R)


class DisLoss(PartWithCode):
    """-ratio x A x logprob where 1 - clip_low < ratio to the engine < 1 + clip_high, else 0."""

    code: ClassVar[str] = "engines.algorithms.losses:dis_loss"
    kind: Literal["dis"]
    clip_low: Share = 0.3
    """SAO: 0.3 for reasoning with tools, 0.8 for coding agents"""
    clip_high: PositiveFloat = 5.0
    """SAO: 5 for reasoning with tools, 3 for coding agents"""


def dis_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """-ratio x A x logprob where 1 - clip_low < ratio < 1 + clip_high, else 0, whatever A's sign.

    Direct double-sided importance sampling (GLM-5, arXiv 2602.15763; SAO): no old policy's pass.
    ratio x A is held constant: a gradient through it would count the logprob twice. A token that
    is left out stays in the denominator.
    Example: ratio 1.2, A = 1 -> gradient -1.2; ratio 7 with clip_high 5 -> none.
    """
    import torch

    ratio_R = tokens.log_ratio_R.detach().exp()
    is_kept_R = (ratio_R > 1 - clip_low) & (ratio_R < 1 + clip_high)
    weight_R = torch.where(is_kept_R, ratio_R, torch.zeros_like(ratio_R))
    return PolicyLoss(-weight_R * tokens.advantages_R * tokens.logprobs_R, ~is_kept_R)


class ReinforceLoss(PartWithCode):
    """-A x logprob: for one update per batch."""

    code: ClassVar[str] = "engines.algorithms.losses:reinforce_loss"
    kind: Literal["reinforce"]


def reinforce_loss(tokens: LossInputs) -> PolicyLoss:
    """-A x logprob of each token: the score-function estimator (Williams 1992).

    It is right only for samples of the present policy.
    Example: A = 2, logprob -0.5 -> 1, gradient -2.
    """
    import torch

    never_R = torch.zeros_like(tokens.advantages_R, dtype=torch.bool)
    return PolicyLoss(-tokens.advantages_R * tokens.logprobs_R, never_R)


class PairDpoLoss(Dpo, PartWithCode):
    """DPO on the rollouts that the advantage `pairs` compares: online DPO (arXiv 2402.04792)."""

    code: ClassVar[str] = "engines.algorithms.losses:pair_dpo_loss"
    kind: Literal["dpo"]


def pair_formula(loss: PairLoss) -> Callable[[Answers], Compared]:
    """Return the formula of a loss of pairs, with its settings filled in."""
    formula = dpo_loss if isinstance(loss, PairDpoLoss) else ipo_loss
    return partial(formula, **loss.model_dump(exclude={"kind"}))


def pair_dpo_loss(tokens: LossInputs, **settings: Any) -> PolicyLoss:
    """The loss `dpo` of its pair at each token.

    Example: log ratios 2 and -1 of the two rollouts, beta 0.1 -> 0.55436 at every token of both.
    """
    return _of_pairs(tokens, partial(dpo_loss, **settings))


class PairIpoLoss(Ipo, PartWithCode):
    """IPO on the rollouts that the advantage `pairs` compares."""

    code: ClassVar[str] = "engines.algorithms.losses:pair_ipo_loss"
    kind: Literal["ipo"]


def pair_ipo_loss(tokens: LossInputs, **settings: Any) -> PolicyLoss:
    """The loss `ipo` of its pair at each token."""
    return _of_pairs(tokens, partial(ipo_loss, **settings))


def _of_pairs(tokens: LossInputs, loss: Callable[[Answers], Compared]) -> PolicyLoss:
    """[R] the loss of each token's pair. So the mean over rollouts of each one's mean over its
    tokens is the mean over pairs, however ranks share the tokens. A rollout with several samples
    is one answer."""
    import torch

    from engines.algorithms.sequence_sums import sequence_sums

    if tokens.pair_B is None:
        raise ValueError("a loss of pairs needs the pair of each sequence")
    pair_R = tokens.pair_B[tokens.segment_R]
    is_worse_R = tokens.advantages_R < 0
    num_answers = 2 * (int(tokens.pair_B.max()) + 1)
    answer_R = 2 * pair_R + is_worse_R

    def summed(values_R: Tensor) -> Tensor:
        return sequence_sums(values_R.double(), answer_R, num_answers, group=tokens.cp_group)

    logprobs_A = summed(tokens.logprobs_R)
    reference_R = tokens.reference_R
    compared = loss(
        Answers(
            logprobs_A,
            torch.zeros_like(logprobs_A) if reference_R is None else summed(reference_R),
            summed(torch.ones_like(tokens.logprobs_R)),
            torch.arange(num_answers).to(pair_R) % 2 == 0,
        )
    )
    loss_R = compared.losses_P[pair_R].to(tokens.logprobs_R)
    return PolicyLoss(loss_R, torch.zeros_like(is_worse_R))


PairLoss = PairDpoLoss | PairIpoLoss


class CustomLoss(Part):
    """Your own `def loss(tokens: LossInputs, **options) -> PolicyLoss` (a loss of each token)."""

    kind: Literal["custom"]
    path: str
    """`module:function`"""
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.path,)


Loss = Annotated[
    ClipLoss
    | GspoLoss
    | CispoLoss
    | DisLoss
    | ReinforceLoss
    | DivergenceLoss
    | PairDpoLoss
    | PairIpoLoss
    | CustomLoss,
    Field(discriminator="kind"),
]


def value_loss(
    values_R: Tensor, old_values_R: Tensor, targets_R: Tensor, *, clip: float | None
) -> tuple[Tensor, Tensor]:
    """(max((V - G)^2, (V_old + clip(V - V_old, +-clip) - G)^2) / 2, where the bound decides): [R].

    The critic's squared error, its step bounded like the policy's (PPO2).
    Only a value that has moved further than `clip` towards its target is held; None: no bound.
    Example: V_old 0, V 0.5, G 1, clip 0.2 -> max(0.25, 0.64) / 2 = 0.32, without gradient.
    """
    import torch

    error_R = (values_R - targets_R).square()
    if clip is None:
        return error_R / 2, torch.zeros_like(error_R, dtype=torch.bool)
    moved_R = values_R - old_values_R
    bounded_R = (old_values_R + moved_R.clamp(-clip, clip) - targets_R).square()
    # Within the bound the two differ by rounding alone, which must not count.
    is_held_R = (moved_R.abs() > clip) & (bounded_R > error_R)
    return torch.maximum(error_R, bounded_R) / 2, is_held_R


def supervised_loss(logprobs_R: Tensor) -> Tensor:
    """-logprob of each trained token, [R]."""
    return -logprobs_R


Estimator = Literal["k1", "k2", "k3"]


UNBIASED_KL = "engines.algorithms.losses:unbiased_kl"
"""in place of the estimate where `unbiased` is set"""


class Kl(PartWithCode):
    """KL penalty towards the model that the stage started from; coef 0: no penalty and no cost."""

    code: ClassVar[str] = "engines.algorithms.losses:kl_estimate"
    coef: float = Field(default=0.0, ge=0)
    """1e-3 to 1e-1 makes sense"""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"
    """a term of the loss, or of each token's reward"""
    unbiased: bool = False
    """in the loss, with k1 or k3: times the ratio to the old policy, so that later mini-batches
    stay exact"""

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("reference",) if self.coef else ()

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.code, UNBIASED_KL) if self.coef else ()


def kl_estimate(logprobs_R: Tensor, reference_R: Tensor, estimator: Estimator) -> Tensor:
    """[R] in nats, with d = logprob - reference's.

    k1 = d: unbiased as a value, its gradient as a loss is zero on average, so it belongs in the
    reward. k2 = d^2 / 2: its gradient is that of the KL. k3 = exp(-d) - 1 + d: unbiased as a value
    and never negative; where the policy is more than 20 nats below the reference it stays at that
    value, without a gradient. All for samples of the policy itself.
    Example: d = ln 2: k1 0.6931, k2 0.2402, k3 0.1931.
    """
    difference_R = logprobs_R - reference_R
    if estimator == "k1":
        return difference_R
    if estimator == "k2":
        return difference_R.square() / 2
    difference_R = difference_R.clamp(min=-LOG_BOUND)
    return (-difference_R).exp() - 1 + difference_R


def unbiased_kl(
    logprobs_R: Tensor, old_logprobs_R: Tensor, reference_R: Tensor, estimator: Estimator
) -> Tensor:
    """[R] ratio to the old policy x estimate (DeepSeek-V3.2, arXiv 2512.02556).

    The gradient through the ratio makes that of k1 and k3 the KL's, for samples of the old policy
    too. That of k2 becomes ratio x (d^2 / 2 + d), another divergence's: `refusals` refuses it.

    Example: ratio 2 and k3 0.1931 -> 0.3863.
    """
    ratio_R = bounded(logprobs_R - old_logprobs_R).exp()
    return ratio_R * kl_estimate(logprobs_R, reference_R, estimator)


class Overlong(PartWithCode):
    """DAPO's soft penalty near the token budget, added to the training reward."""

    code: ClassVar[str] = "engines.algorithms.losses:overlong_penalty"
    margin: Share = 0.2
    """share of the budget, at its end, over which the penalty falls from 0 to -weight"""
    weight: PositiveFloat = 1.0
    budget: PositiveInt | None = None
    """tokens; None: the rollout's token budget"""


def overlong_penalty(lengths_N: Tensor, budgets_N: Tensor, *, margin: float) -> Tensor:
    """[N] float64: 0 up to budget x (1 - margin) tokens, then falling evenly to -1 at the budget.

    The soft penalty on replies that come near their token budget (DAPO, arXiv 2503.14476).
    Example: budget 100, margin 0.2: 80 tokens -> 0, 90 -> -0.5, 100 and more -> -1.
    """
    width_N = budgets_N.double() * margin
    excess_N = lengths_N - (budgets_N - width_N)
    return -(excess_N / width_N).clamp(0, 1)
