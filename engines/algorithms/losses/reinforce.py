"""The score-function estimator (Williams 1992): right only for samples of the present policy."""

from __future__ import annotations

import torch

from engines.algorithms.inputs import LossInputs, PolicyLoss


def reinforce_loss(tokens: LossInputs) -> PolicyLoss:
    """-A x logprob of each token. Example: A = 2, logprob -0.5 -> 1, gradient -2."""
    never_R = torch.zeros_like(tokens.advantages_R, dtype=torch.bool)
    return PolicyLoss(-tokens.advantages_R * tokens.logprobs_R, never_R)
