"""A trainer of three tensors that writes versions of them for servers' copies."""

from __future__ import annotations

import torch

from engines.weights.buckets import TrainedWeights
from engines.weights.disk_delta.disk_delta import DiskDelta
from engines.weights.disk_delta.weight_copy import WeightCopy
from infra.store.store import Store
from tests.parts.whole_weights import WholeTensor


class DeltaTrainer:
    """Tensors that change, written by a transport without servers."""

    def __init__(self, url: str) -> None:
        self.transport = DiskDelta(url)
        self.store = Store(url)
        random = torch.Generator().manual_seed(0)
        self.tensors = {
            "embedding": torch.randn(300, 20, generator=random).bfloat16(),
            "norm": torch.ones(20),
            "head": torch.randn(20, 300, generator=random).bfloat16(),
        }

    def write(self, version: int, *, whole: bool = False) -> str:
        """The folder of the version."""
        weights = [WholeTensor(name, tensor) for name, tensor in self.tensors.items()]
        trained = TrainedWeights(weights, bucket_bytes=12_000)
        self.transport._write(trained, version, whole=whole)
        return self.transport._newest.folder

    def step(self, *names: str) -> None:
        for name in names:
            self.tensors[name].view(-1)[::37] *= 1.01

    def holds(self, copy: WeightCopy) -> bool:
        found = {name: t for bucket in copy.buckets(lambda _: True) for name, t in bucket}
        return found.keys() == self.tensors.keys() and all(
            torch.equal(found[name], tensor) for name, tensor in self.tensors.items()
        )


def copy_apart() -> WeightCopy:
    """In memory of its own, which is enough without a server."""
    return WeightCopy(lambda size: torch.empty(size, dtype=torch.uint8))
