"""Model FLOPs of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engines.families.common.family import ModelShape


def dense_flops(
    shape: ModelShape, lengths: NDArray[np.int64], num_logit_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Forward and backward of each sequence of these lengths, logits on so many of its tokens.

    A weight costs 6 FLOPs a token (2 forward, 4 backward); causal attention 6 x heads x head size
    x length squared a layer, which already counts only the lower triangle. No recomputation.
    """
    # Floats: the squares of long sequences times a large model's sizes pass 2**63.
    tokens, rows = lengths.astype("float64"), num_logit_rows.astype("float64")
    outputs = 1 if shape.has_value_head else shape.vocab
    weights = shape.num_matmul_params * tokens + shape.hidden * outputs * rows
    attention = shape.num_layers * shape.heads * shape.head_dim * tokens**2
    return 6.0 * (weights + attention)
