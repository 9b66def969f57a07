"""Weights of a HF folder as one process holds them, and transports to push them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engines.sglang.external.give_weights import WholeTensor
from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.buckets import BUCKET_BYTES, TrainedWeights
from engines.weights.disk import Disk
from engines.weights.disk_delta.disk_delta import DiskDelta
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import PublishReport, Transport, find_targets

TRANSPORTS: dict[str, Callable[[Path], Transport]] = {
    "shared memory": lambda _: SharedMemory(),
    "broadcast": lambda _: Broadcast(),
    "disk": Disk,
    "disk delta": lambda folder: DiskDelta(str(folder)),
}
"""every transport, made with a folder that it may use"""


def tensors_of(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors.torch import load_file

    yield from load_file(folder / "model.safetensors").items()


def whole_weights(folder: Path, bucket_bytes: int = BUCKET_BYTES) -> TrainedWeights:
    weights = [WholeTensor(name, tensor) for name, tensor in tensors_of(folder)]
    return TrainedWeights(weights, bucket_bytes=bucket_bytes)


def push(
    folder: Path, urls: Sequence[str], version: int, transport: Transport | None = None
) -> PublishReport:
    """By shared memory if no transport is given."""
    return (transport or SharedMemory()).push(whole_weights(folder), find_targets(urls), version)
