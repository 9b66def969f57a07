"""Rotary embedding in fp32, whatever the dtype of the model, as the generator computes it.

Axes: T tokens, N heads, D head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import _dynamo as dynamo

from engines.megatron import kernels


def rotary_factors(
    positions_T: Tensor,
    speeds: Tensor,
    head_dim: int | None = None,
    *,
    scale: float = 1.0,
    in_pairs: bool = False,
) -> tuple[Tensor, Tensor]:
    """Cosines [T, 1, D] and sines [T, 1, R / 2] times `scale`, float32, for `speeds` [R / 2] in
    radians.

    R of the D numbers of a head of `head_dim` are rotated, the first ones; None: all of them.
    """
    angles = positions_T[:, None, None].float() * speeds
    cos = angles.cos() * scale
    kept = (head_dim or 0) - 2 * len(speeds)
    ones = [cos.new_ones(len(cos), 1, kept)] if kept > 0 else []
    turned = [cos.repeat_interleave(2, -1)] if in_pairs else [cos, cos]
    return torch.cat([*turned, *ones], -1), angles.sin() * scale


class Rotate(torch.autograd.Function):
    """Rotary embedding of [T, N, D] in half the passes that autograd would make: a number of the
    first half of what is rotated turns with one of the second half, or `in_pairs` with the next."""

    @staticmethod
    def forward(  # pyrefly: ignore[bad-override]
        ctx: Any, x_TND: Tensor, cos: Tensor, sin: Tensor, in_pairs: bool = False
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.in_pairs = in_pairs
        return _rotation()(x_TND, cos, sin, in_pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        # A rotation's gradient is the rotation back.
        return _rotation()(gradients[0], cos, -sin, ctx.in_pairs), None, None, None


def _rotation() -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    return _fused if kernels.in_use().compiled else _rotated


def _fused(x_TND: Tensor, cos: Tensor, sin: Tensor, in_pairs: bool) -> Tensor:
    """One pass over a tensor in place of five, for packs of any number of tokens.

    Nothing else is left open: a kernel that has to divide by a head's size for each number of the
    tensor took seven times as long as the memory needs.
    """
    for tensor in (x_TND, cos, sin):
        dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled()(x_TND, cos, sin, in_pairs)


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, bool], Tensor]:
    return torch.compile(_rotated_at_once, dynamic=False)


def _rotated_at_once(x_TND: Tensor, cos: Tensor, sin: Tensor, in_pairs: bool) -> Tensor:
    """`_rotated` without writing to parts of a tensor."""
    half, wide = sin.size(-1), x_TND.float()
    turned = wide[..., : 2 * half]
    if in_pairs:
        other = turned.unflatten(-1, (half, 2)).flip(-1).flatten(-2)
        signed = torch.stack([-sin, sin], -1).flatten(-2)
    else:
        other = turned.unflatten(-1, (2, half)).flip(-2).flatten(-2)
        signed = torch.cat([-sin, sin], -1)
    out = turned * cos[..., : 2 * half] + other * signed
    return torch.cat([out, wide[..., 2 * half :]], -1).to(x_TND.dtype)


def _rotated(x_TND: Tensor, cos: Tensor, sin: Tensor, in_pairs: bool) -> Tensor:
    half, wide = sin.size(-1), x_TND.float()
    halves = (slice(0, half), slice(half, 2 * half))
    one, other = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if in_pairs else halves
    out = wide * cos
    out[..., one].addcmul_(wide[..., other], sin, value=-1)
    out[..., other].addcmul_(wide[..., one], sin)
    return out.to(x_TND.dtype)
