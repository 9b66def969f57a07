"""Model FLOPs of a step, and what the device could do at most: their ratio is the MFU."""

from __future__ import annotations

import functools
import time

import numpy as np
import torch
from numpy.typing import NDArray

from engines.megatron import device
from engines.megatron.hf_config import ModelShape

# Large enough to be bound by arithmetic, small enough to take well under a second on one core.
PEAK_MATRIX = {"cpu": 1024, "cuda": 8192}


def sequence_flops(
    shape: ModelShape, lengths: NDArray[np.int64], num_logit_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Forward and backward of each sequence of these lengths, logits on so many of its tokens.

    A weight costs 6 FLOPs a token (2 forward, 4 backward); causal attention 6 x heads x head size
    x length squared a layer, which already counts only the lower triangle. No recomputation.
    """
    # Floats: the squares of long sequences times a large model's sizes pass 2**63.
    tokens, rows = lengths.astype(np.float64), num_logit_rows.astype(np.float64)
    outputs = 1 if shape.has_value_head else shape.vocab
    weights = shape.num_matmul_params * tokens + shape.hidden * outputs * rows
    attention = shape.num_layers * shape.heads * shape.head_dim * tokens**2
    return 6.0 * (weights + attention)


@functools.cache
def peak_flops(dtype: torch.dtype) -> float:
    """FLOPs a second of a large matrix product on this process's device, best of four."""
    place = device.device()
    size = PEAK_MATRIX[place.type]
    a = torch.randn(size, size, device=place).to(dtype)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        torch.mm(a, a)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
