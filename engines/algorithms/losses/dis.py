"""Direct double-sided importance sampling (GLM-5, arXiv 2602.15763; SAO): no old policy's pass."""

from __future__ import annotations

import torch

from engines.algorithms.inputs import LossInputs, PolicyLoss


def dis_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """-ratio x A x logprob where 1 - clip_low < ratio < 1 + clip_high, else 0, whatever A's sign.

    ratio x A is held constant: a gradient through it would count the logprob twice. A token that
    is left out stays in the denominator.
    Example: ratio 1.2, A = 1 -> gradient -1.2; ratio 7 with clip_high 5 -> none.
    """
    ratio_R = tokens.log_ratio_R.detach().exp()
    is_kept_R = (ratio_R > 1 - clip_low) & (ratio_R < 1 + clip_high)
    weight_R = torch.where(is_kept_R, ratio_R, torch.zeros_like(ratio_R))
    return PolicyLoss(-weight_R * tokens.advantages_R * tokens.logprobs_R, ~is_kept_R)
