"""Advantages with mean 0 and variance 1 over a step's whole batch."""

from __future__ import annotations

from torch import Tensor

EPSILON = 1e-8


def whitened(values_R: Tensor) -> Tensor:
    """(value - mean) / sqrt(variance + 1e-8) over all trained tokens of the step, [R].

    The variance is the sample's (R - 1). Every data-parallel rank holds the whole batch, so that
    the statistics are global. One value alone, or equal ones, become 0.
    Example: 1, 2, 3 -> -1, 0, 1.
    """
    centred = values_R - values_R.mean()
    variance = centred.square().sum() / max(len(values_R) - 1, 1)
    return centred / (variance + EPSILON).sqrt()
