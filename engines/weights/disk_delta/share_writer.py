"""A rank's part of a version: its share of the buckets, as files of what changed in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights
from engines.weights.disk_delta.delta_manifest import BucketRecord, TensorRecord, checksum_of
from engines.weights.disk_delta.difference import Bits, bits_of, encode
from infra.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class ShareWriter:
    """Remembers the share of the version before, whole, in host memory: all ranks together keep the
    weights once."""

    store: Store
    _before: dict[int, Bits] = field(default_factory=dict[int, Bits])
    """by the bucket's number"""

    @property
    def kept_bytes(self) -> int:
        return sum(bits.nbytes for bits in self._before.values())

    def write(self, weights: TrainedWeights, folder: str, *, whole: bool) -> list[BucketRecord]:
        """Write this rank's files, and remember its share for the next time.

        Raises after the last bucket, with the first error: peers wait to hand over their shards.
        What is remembered is of no use then: see `forget`.
        """
        import torch

        if whole:
            self.forget()
        records: list[BucketRecord] = []
        failed: Exception | None = None
        memory = OwnMemory(torch.device("cpu"))
        for index, bucket in enumerate(weights.buckets(memory, share_work=True)):
            if bucket is None or failed is not None:
                continue
            try:
                name = f"{folder}/rank-{weights.ranks.rank}-{index}.delta"
                records.append(self._write(bucket, index, name))
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
        return records

    def forget(self) -> None:
        """The next version can only be written whole."""
        self._before.clear()

    def _write(self, bucket: Bucket, index: int, name: str) -> BucketRecord:
        first = bucket.tensors[0][1]
        new = bits_of(as_array(bucket.flat).view(f"u{first.element_size()}"))
        before = self._before.get(index)
        data = encode(new, before)
        if before is None:
            self._before[index] = new.copy()
        else:
            np.copyto(before, new)
        self.store.write(name, data)
        return BucketRecord(
            file=name.rpartition("/")[2],
            size=len(data),
            checksum=checksum_of(data),
            dtype=str(first.dtype).removeprefix("torch."),
            width=new.itemsize,
            tensors=tuple(
                TensorRecord(name=n, shape=tuple(t.shape), checksum=tensor_checksum(t))
                for n, t in bucket.tensors
            ),
        )


def as_array(flat: Tensor) -> NDArray[Any]:
    """The bytes of a tensor on the CPU, in the same memory."""
    import torch

    return flat.reshape(-1).view(torch.uint8).numpy()


def tensor_checksum(tensor: Tensor) -> str:
    return checksum_of(as_array(tensor))
