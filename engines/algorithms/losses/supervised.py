"""Supervised learning: the negative log-likelihood of what was shown."""

from __future__ import annotations

from torch import Tensor


def supervised_loss(logprobs_R: Tensor) -> Tensor:
    """-logprob of each trained token, [R]."""
    return -logprobs_R
