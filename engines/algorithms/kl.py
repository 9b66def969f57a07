"""Estimates of KL(policy || reference) from the sampled tokens (Schulman, "Approximating KL")."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from engines.algorithms.statistics.ratios import LOG_BOUND, bounded

Estimator = Literal["k1", "k2", "k3"]


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
