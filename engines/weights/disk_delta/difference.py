"""What changed between two arrays of equal length, in few bytes and without loss; and a rank's part
of a version: its share of the buckets, as files of what changed in them.

Numbers are compared as bits: two NaNs are equal if their bits are, 0.0 and -0.0 are not. An array
is cut into blocks of BLOCK numbers. A block is

    changes   how many numbers changed, 4 bytes
    gap bytes how many bytes the gaps have, 4 bytes
    sizes     of the gaps and of each plane as they follow, 4 bytes each
    gaps      how far each changed number is from the one before it, as bytes; none if all changed
    planes    the first bytes of all differences, then the second bytes, ...

with gaps and planes compressed by zstd. A difference is new minus old, both taken as integers, with
its sign in the lowest bit: small steps up and down leave the higher planes zero. Without an old
array everything is compared with zeros, so a whole version has the same form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights
from engines.weights.disk_delta.delta_manifest import BucketRecord, TensorRecord, checksum_of
from infra.store.store import Store

if TYPE_CHECKING:
    from pyarrow import Codec
    from torch import Tensor


BLOCK = 1 << 20
_SKIP = 255
"""a gap byte that only moves on; the change comes with a later byte"""
_LEVEL = 1
Bits = NDArray[np.unsignedinteger[Any]]


def encode(new: Bits, old: Bits | None) -> bytes:
    """Return how to make `new` of `old`, or of zeros. Both [N], of the same unsigned type."""
    cuts = range(0, len(new), BLOCK)
    return b"".join(
        _encoded(new[at : at + BLOCK], None if old is None else old[at : at + BLOCK]) for at in cuts
    )


def apply(data: bytes, to: Bits) -> None:
    """Change `to` in place, which has to be the old array. `data` is what `encode` made."""
    view, at = memoryview(data), 0
    for start in range(0, len(to), BLOCK):
        at = _apply_block(view, at, to[start : start + BLOCK])


def bits_of(numbers: NDArray[Any]) -> Bits:
    """Return the same memory as unsigned integers of the same width."""
    return numbers.view(np.dtype(f"u{numbers.dtype.itemsize}"))


@cache
def _codec() -> Codec:
    from pyarrow import Codec

    return Codec("zstd", compression_level=_LEVEL)


def _header(width: int) -> struct.Struct:
    return struct.Struct(f"<{3 + width}I")


def _encoded(new: Bits, old: Bits | None) -> bytes:
    width = new.dtype.itemsize
    is_changed = new != (0 if old is None else old)
    count = np.count_nonzero(is_changed)
    if not count:
        return _header(width).pack(*[0] * (3 + width))
    gaps = b""
    if count < len(new):
        changed = np.flatnonzero(is_changed)
        gaps = _gaps(changed).tobytes()
        new, old = new[changed], None if old is None else old[changed]
    values = new if old is None else new - old
    parts = [_packed(part) for part in (gaps, *_planes(_with_low_sign(values)))]
    sizes = [len(part) for part in parts]
    return b"".join([_header(width).pack(count, len(gaps), *sizes), *parts])


def _apply_block(data: memoryview, at: int, to: Bits) -> int:
    """Returns where the next block begins."""
    width = to.dtype.itemsize
    header = _header(width)
    count, gap_bytes, *sizes = header.unpack_from(data, at)
    at += header.size
    parts: list[bytes] = []
    for size, raw in zip(sizes, [gap_bytes, *[count] * width], strict=True):
        parts.append(_codec().decompress(data[at : at + size], raw, asbytes=True) if raw else b"")
        at += size
    if count:
        planes = np.stack([np.frombuffer(part, np.uint8) for part in parts[1:]], axis=1)
        values = _without_low_sign(planes.reshape(-1).view(to.dtype))
        if gap_bytes:
            to[_positions(np.frombuffer(parts[0], np.uint8))] += values
        else:
            to += values
    return at


def _packed(part: bytes | NDArray[np.uint8]) -> bytes:
    return _codec().compress(part, asbytes=True) if len(part) else b""


def _planes(values: Bits) -> Iterator[NDArray[np.uint8]]:
    of_each = values.view(np.uint8).reshape(len(values), -1)
    for byte in range(of_each.shape[1]):
        yield np.ascontiguousarray(of_each[:, byte])


def _gaps(positions: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return them as bytes: 255 moves on by 255, a smaller one by itself and is a changed
    number."""
    skips, rest = np.divmod(np.diff(positions, prepend=-1) - 1, _SKIP)
    ends = np.cumsum(skips + 1) - 1
    gaps = np.full(ends[-1] + 1, _SKIP, np.uint8)
    gaps[ends] = rest
    return gaps


def _positions(gaps: NDArray[np.uint8]) -> NDArray[np.int64]:
    is_change = gaps != _SKIP
    return (np.cumsum(gaps, dtype=np.int64) + np.cumsum(is_change) - 1)[is_change]


def _with_low_sign(values: Bits) -> Bits:
    """0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    bits = 8 * values.dtype.itemsize
    one = values.dtype.type(1)
    return (values << one) ^ -(values >> values.dtype.type(bits - 1))


def _without_low_sign(values: Bits) -> Bits:
    one = values.dtype.type(1)
    return (values >> one) ^ -(values & one)


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
