"""Clipped importance weights (MiniMax-M1, arXiv 2506.13585): every token keeps a gradient."""

from __future__ import annotations

from engines.algorithms.inputs import LossInputs, PolicyLoss


def cispo_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """-clip(ratio, 1 - clip_low, 1 + clip_high) x A x logprob, the clipped ratio held constant.

    Example: ratio 8, clip_high 4, A = 1 -> gradient of the logprob is -5, not 0.
    """
    ratio_R = tokens.log_ratio_R.detach().exp()
    weight_R = ratio_R.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(-weight_R * tokens.advantages_R * tokens.logprobs_R, weight_R != ratio_R)
