"""The critic's loss: squared error, its step bounded like the policy's (PPO2)."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(
    values_R: Tensor, old_values_R: Tensor, targets_R: Tensor, *, clip: float | None
) -> tuple[Tensor, Tensor]:
    """(max((V - G)^2, (V_old + clip(V - V_old, +-clip) - G)^2) / 2, where the bound decides): [R].

    Only a value that has moved further than `clip` towards its target is held; None: no bound.
    Example: V_old 0, V 0.5, G 1, clip 0.2 -> max(0.25, 0.64) / 2 = 0.32, without gradient.
    """
    error_R = (values_R - targets_R).square()
    if clip is None:
        return error_R / 2, torch.zeros_like(error_R, dtype=torch.bool)
    moved_R = values_R - old_values_R
    bounded_R = (old_values_R + moved_R.clamp(-clip, clip) - targets_R).square()
    # Within the bound the two differ by rounding alone, which must not count.
    is_held_R = (moved_R.abs() > clip) & (bounded_R > error_R)
    return torch.maximum(error_R, bounded_R) / 2, is_held_R
