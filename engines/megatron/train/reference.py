"""The model that a KL term pulls towards: the weights the stage began with."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor

from engines.megatron.model import PolicyModel


class Reference:
    """A second set of this rank's weights, put in place of the policy's for a forward pass."""

    def __init__(self, policy: PolicyModel, load: Callable[[], None]) -> None:
        """`load` writes the reference's weights into the policy; the policy's own come back."""
        own = _copies(policy)
        load()
        self.weights = _copies(policy)
        _put(policy, own)

    @contextmanager
    def in_place(self, policy: PolicyModel) -> Generator[None]:
        own = _copies(policy)
        _put(policy, self.weights)
        try:
            yield
        finally:
            _put(policy, own)


def _copies(policy: PolicyModel) -> list[Tensor]:
    return [p.detach().clone() for p in policy.parameters()]


@torch.no_grad()
def _put(policy: PolicyModel, weights: list[Tensor]) -> None:
    for parameter, weight in zip(policy.parameters(), weights, strict=True):
        parameter.copy_(weight)
