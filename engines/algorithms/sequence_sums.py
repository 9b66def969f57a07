"""Sums over each sequence's tokens, also when ranks share it. Axes: R tokens, B sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sequence_sums(
    values_R: Tensor, segment_R: Tensor, num_sequences: int, *, group: dist.ProcessGroup | None
) -> Tensor:
    """[B] sum of each sequence's values over all ranks of `group`; differentiable.

    Each rank's loss may depend on the sums, so the gradients of all ranks are summed as well.
    Example: values 1, 2, 3 of segments 0, 1, 1 -> 1, 5.
    """
    sums_B = values_R.new_zeros(num_sequences).index_add(0, segment_R, values_R)
    if group is None or group.size() == 1:
        return sums_B
    return _SumOverRanks.apply(sums_B, group)


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:  # pyrefly: ignore[bad-override]
        ctx.group = group
        return _summed(values, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _summed(gradients[0], ctx.group), None


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = values.clone()
    dist.all_reduce(total, group=group)
    return total
