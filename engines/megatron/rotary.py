"""Rotary embedding in fp32, whatever the dtype of the model, as the generator computes it.

Axes: T tokens, N heads, D head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engines.megatron import kernels


def rotary_factors(positions_T: Tensor, speeds: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines [T, 1, D] and sines [T, 1, D / 2], float32, for `speeds` [D / 2] in radians."""
    angles = positions_T[:, None, None].float() * speeds
    cos = angles.cos()
    return torch.cat([cos, cos], -1), angles.sin()


class Rotate(torch.autograd.Function):
    """Rotary embedding of [T, N, D] by its halves; half the passes that autograd would make."""

    @staticmethod
    def forward(ctx: Any, x_TND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotation()(x_TND, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        # A rotation's gradient is the rotation back.
        return _rotation()(gradients[0], cos, -sin), None, None


def _rotation() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return _fused() if kernels.in_use().compiled else _rotated


@functools.cache
def _fused() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """One pass over a tensor in place of five, for packs of any number of tokens."""
    return torch.compile(_rotated, dynamic=True)


def _rotated(x_TND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half, wide = sin.size(-1), x_TND.float()
    out = wide * cos
    out[..., :half].addcmul_(wide[..., half:], sin, value=-1)
    out[..., half:].addcmul_(wide[..., :half], sin)
    return out.to(x_TND.dtype)
