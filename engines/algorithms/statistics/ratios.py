"""Ratios of probabilities that no single token can make infinite. Axis: R tokens."""

from __future__ import annotations

from torch import Tensor

LOG_BOUND = 20.0
"""log ratios are held within +-20, so that one token cannot overflow a loss or a sum"""


def bounded(log_ratio_R: Tensor) -> Tensor:
    """[R] log ratios within +-20; beyond, the bound without a gradient.

    Example: -30, 0.5 and infinity -> -20, 0.5 and 20.
    """
    return log_ratio_R.clamp(-LOG_BOUND, LOG_BOUND)
