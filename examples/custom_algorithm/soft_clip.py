"""A custom loss: the ratio's pull fades smoothly instead of ending at a bound."""

import torch

from engines.algorithms.inputs import LossInputs, PolicyLoss


def loss(tokens: LossInputs, width: float = 0.3) -> PolicyLoss:
    """-tanh((ratio - 1) / width) x width x A: slope -A at ratio 1, flat far from it."""
    excess_R = (tokens.log_ratio_R.exp() - 1) / width
    loss_R = -width * torch.tanh(excess_R) * tokens.advantages_R
    return PolicyLoss(loss_R, excess_R.abs() > 1)
