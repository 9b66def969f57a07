"""The clipped surrogate of PPO (arXiv 1707.06347), asymmetric, and its dual bound."""

from __future__ import annotations

import torch

from engines.algorithms.inputs import LossInputs, PolicyLoss


def clip_loss(
    tokens: LossInputs, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> PolicyLoss:
    """-min(ratio x A, clip(ratio, 1 - clip_low, 1 + clip_high) x A) of each token.

    With `dual_clip` c > 1, a bad action's loss is at most c x |A| (arXiv 1912.09729): a token that
    became far more likely since it was sampled must not dominate.
    Example: ratio 1.5, A = 1, clip_high 0.28 -> loss -1.28, clipped, no gradient.
    """
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
