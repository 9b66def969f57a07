"""Terms beside the policy's: for moving away from the first model, and for overlong replies.

KL(policy || reference) is estimated from the sampled tokens (Schulman, "Approximating KL").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from engines.algorithms.parts import Need, PartWithCode, Share
from engines.algorithms.statistics import LOG_BOUND, bounded

if TYPE_CHECKING:
    from torch import Tensor


Estimator = Literal["k1", "k2", "k3"]


UNBIASED_KL = "engines.algorithms.penalties:unbiased_kl"
"""in place of the estimate where `unbiased` is set"""


class Kl(PartWithCode):
    """KL penalty towards the model that the stage started from; coef 0: no penalty and no cost."""

    code: ClassVar[str] = "engines.algorithms.penalties:kl_estimate"
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

    code: ClassVar[str] = "engines.algorithms.penalties:overlong_penalty"
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
