"""Weights as what changed since the version before: how few bytes, how fast, beside zstd alone.

300 MB of bf16 in which 3% of the values changed, through files in memory. One thread each.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from engines.weights.buckets import TrainedWeights
from engines.weights.disk_delta.delta_manifest import Base, Manifest
from engines.weights.disk_delta.difference import ShareWriter
from engines.weights.disk_delta.weight_copy import WeightCopy
from infra.store.store import Store
from tests.parts.whole_weights import WholeTensor
from tests.programs.bench.clock import timed
from tests.programs.bench.rows import Row

TENSORS, VALUES = 30, 5_000_000
BYTES = 2 * TENSORS * VALUES
CHANGED = 0.03
ROUNDS = 5
MOST = 0.06
"""of the weights' bytes"""

Bits = NDArray[np.uint16]


def measure() -> list[Row]:
    random = np.random.default_rng(0)
    weights = [_weights(random) for _ in range(TENSORS)]

    def by_steps(values: Bits) -> Bits:
        """Up or down to the next number that bf16 has, as a small learning rate does."""
        return values + random.choice(np.array([1, 0xFFFF], np.uint16), len(values))

    def anything(values: Bits) -> Bits:
        return random.integers(0, 1 << 16, len(values), np.uint16)

    steps, encode_s, apply_s = _deltas(weights, by_steps, random, ROUNDS)
    worst, _, _ = _deltas(weights, anything, random, 1)
    compress_s, decompress_s, compressed = _zstd_alone(weights)
    note = f"{BYTES / 1e6:.0f} MB of bf16, {CHANGED:.0%} of the values changed"
    return [
        Row("delta over the weights, values one step up or down", steps, "ratio", MOST, True, note),
        Row("delta over the weights, any new values", worst, "ratio", MOST, True, note),
        Row("delta: a rank compares, encodes and writes", _rate(encode_s), "MB/s", note=note),
        Row("delta: a copy reads, applies and verifies", _rate(apply_s), "MB/s", note=note),
        Row("zstd alone: compresses the weights", _rate(compress_s), "MB/s", note=note),
        Row("zstd alone: decompresses them", _rate(decompress_s), "MB/s", note=note),
        Row("zstd alone over the weights", compressed, "ratio", note=note),
    ]


def _rate(seconds: float) -> float:
    return BYTES / 1e6 / seconds


def _weights(random: np.random.Generator) -> Bits:
    return (random.normal(0, 0.02, VALUES).astype(np.float32).view(np.uint32) >> 16).astype("u2")


def _deltas(
    weights: list[Bits], change: Callable[[Bits], Bits], random: np.random.Generator, rounds: int
) -> tuple[float, float, float]:
    """Bytes over the whole, and median seconds of a rank and of a server's copy."""
    served = [torch.from_numpy(bits).view(torch.bfloat16) for bits in weights]
    trained = TrainedWeights([WholeTensor(f"w{i}", tensor) for i, tensor in enumerate(served)])
    copy = WeightCopy(lambda size: torch.empty(size, dtype=torch.uint8))
    encoding: list[float] = []
    applying: list[float] = []
    size = 0
    with tempfile.TemporaryDirectory(prefix="tr-bench-", dir="/dev/shm") as folder:
        store = Store(folder)
        writer = ShareWriter(store)
        base = _write(writer, trained, 0, None)
        copy.catch_up(store, base.folder)
        for version in range(1, rounds + 1):
            for bits in weights:
                at = np.flatnonzero(random.random(VALUES, np.float32) < CHANGED)
                bits[at] = change(bits[at])
            before = base
            encoding.append(timed(lambda v=version, b=before: _write(writer, trained, v, b)).wall)
            base = _newest(store, version)
            applying.append(timed(lambda b=base: copy.catch_up(store, b.folder)).wall)
            size = sum(file.stat().st_size for file in (Path(folder) / base.folder).iterdir())
            store.delete_tree(before.folder)
    return size / BYTES, statistics.median(encoding), statistics.median(applying)


def _write(writer: ShareWriter, trained: TrainedWeights, version: int, base: Base | None) -> Base:
    folder = f"v{version}"
    files = writer.write(trained, folder, whole=base is None)
    manifest = Manifest.of(version, base, files)
    writer.store.write(f"{folder}/manifest.json", manifest.dump())
    return Base(version=version, checksum=manifest.checksum, folder=folder)


def _newest(store: Store, version: int) -> Base:
    text = store.read(f"v{version}/manifest.json")
    manifest = Manifest.parse(text, "")
    return Base(version=version, checksum=manifest.checksum, folder=f"v{version}")


def _zstd_alone(weights: list[Bits]) -> tuple[float, float, float]:
    """Median seconds to compress all and to decompress it, and the share of bytes that is left."""
    codec = pa.Codec("zstd", compression_level=1)
    packed: list[bytes] = []

    def compress() -> None:
        packed[:] = [codec.compress(bits, asbytes=True) for bits in weights]

    def decompress() -> None:
        for data, bits in zip(packed, weights, strict=True):
            codec.decompress(data, bits.nbytes)

    compressing = statistics.median(timed(compress).wall for _ in range(3))
    decompressing = statistics.median(timed(decompress).wall for _ in range(3))
    return compressing, decompressing, sum(map(len, packed)) / BYTES
