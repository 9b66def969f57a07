"""Group sequence policy optimisation (arXiv 2507.18071): one ratio for a whole sequence."""

from __future__ import annotations

from dataclasses import replace

import torch

from engines.algorithms.inputs import LossInputs, PolicyLoss
from engines.algorithms.losses.clip import clip_loss


def gspo_loss(tokens: LossInputs, *, clip_low: float, clip_high: float) -> PolicyLoss:
    """The clipped loss with ratio exp(mean over the sequence of the log ratio) at every token.

    The mean is over the whole sequence, on whichever ranks it lies, and carries the gradient.
    Example: token ratios 2 and 1/2 -> sequence ratio 1 at both.
    """
    mean_R = tokens.sequence_mean(tokens.log_ratio_R)
    as_one = replace(tokens, logprobs_R=mean_R, old_logprobs_R=torch.zeros_like(mean_R))
    return clip_loss(as_one, clip_low=clip_low, clip_high=clip_high, dual_clip=None)
