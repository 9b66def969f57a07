"""A rank's weights as buckets of whole tensors, in the names and shapes that servers take.

    weights ─ plan ─▶ [w w w] [w w] ... ─ own shard copied, other shards received ─▶ Bucket

Two buckets' memory serves them all in turn: one can be sent while the next is packed. With tensor
parallelism a bucket's limit also counts what its packing receives, so that a rank holds at most two
buckets in all. A tensor that is larger than the limit goes alone.

For servers that take FP8 the layers' matrices are packed beside that memory and quantised into it,
where they take half of it or less; their scales come last, in a bucket of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Protocol

from engines.devices.waiting_time import transfer_bound_s
from engines.families.common.tensors import Size
from engines.weights.fp8_blocks import SCALES, is_matrix_of_fp8, quantise, scales_size
from engines.weights.ranks import ALONE, WAIT_S, Ranks

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BUCKET_BYTES = 1 << 29
TAKE_S = 120.0
"""what a server may take for weights of no size; more of them get time for their bytes"""

_TAKEN_TOGETHER = re.compile(r"\.(q_a_proj|kv_a_proj_with_mqa)\.")
"""projections of one layer that SGLang makes one matrix of; of a request that brings only one of
them it keeps nothing, and says nothing"""
_SCALE_BYTES = 4


class Weight(Protocol):
    """One parameter as this rank holds it, and the tensors that servers take for it."""

    @property
    def local(self) -> Tensor:
        """this rank's shard of it, or all of it if it is not split"""
        ...

    @property
    def tensors(self) -> Sequence[tuple[str, Size]]:
        """HF names and whole sizes"""
        ...

    def gives(self, index: int, to: int) -> bool:
        """Return whether the rank with shard `index` has one that the rank with shard `to`
        needs."""
        ...

    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        """Copy the shard of rank `index` to where it belongs in the whole tensors."""
        ...


class Memory(Protocol):
    """Where buckets lie."""

    def __call__(self, slot: int, num_bytes: int) -> Tensor:
        """At least `num_bytes` of type uint8; the same memory again for the same slot, if it is
        large enough. Slots are 0 and 1."""
        ...


@dataclass(frozen=True, slots=True)
class Bucket:
    """Whole tensors of one type, end to end in `flat`. Its memory is used again by the bucket after
    the next one."""

    flat: Tensor
    tensors: Sequence[tuple[str, Tensor]]
    """HF names and views of `flat`"""


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The weights of a model in training, as one of its ranks holds them."""

    weights: Sequence[Weight]
    """of this rank's pipeline stage"""
    ranks: Ranks = ALONE
    bucket_bytes: int = BUCKET_BYTES
    in_fp8: bool = False
    """whether servers take the layers' matrices as FP8"""

    def buckets(self, memory: Memory, *, share_work: bool = False) -> Iterator[Bucket | None]:
        """Yield each bucket of this rank's stage in turn; None for one that another rank gets.

        The stage's sender gets them all, or with `share_work` every rank its share. All ranks of a
        stage have to iterate to the end: they give each other their shards on the way.
        """
        ranks, index = self.ranks, -1
        scales: list[tuple[str, Tensor]] = []
        beside = OwnMemory(self.weights[0].local.device)
        for index, weights in enumerate(self._plan()):
            turn = index if share_work else 0
            replica, shard = turn % ranks.num_replicas, turn // ranks.num_replicas
            if ranks.replica != replica:
                yield None
            elif ranks.shard != shard % ranks.num_shards:
                _give_shards(weights, ranks, shard % ranks.num_shards)
                yield None
            elif self._is_fp8(weights[0]):
                whole = _packed(weights, ranks, partial(beside, 0))
                yield _quantised(whole, partial(memory, index % 2), scales)
            else:
                yield _packed(weights, ranks, partial(memory, index % 2))
        if self._scales_bytes():
            yield _copied(scales, partial(memory, (index + 1) % 2)) if scales else None

    def bucket_sizes(self) -> list[int]:
        """Return the sizes in bytes of all buckets of this rank's stage in turn."""
        sizes = [
            sum(map(_count if self._is_fp8(weights[0]) else _whole_bytes, weights))
            for weights in self._plan()
        ]
        return [*sizes, scales] if (scales := self._scales_bytes()) else sizes

    def wait_s(self) -> float:
        """Within which any rank's part in a push ends: each bucket has a server's time for it. All
        ranks call it, and get the longest."""
        own = sum(transfer_bound_s(size, TAKE_S) for size in self.bucket_sizes())
        return max(self.ranks.gather(own)) + WAIT_S

    def _plan(self) -> Iterator[list[Weight]]:
        for is_fp8 in (False, True):
            alike = [weight for weight in self.weights if self._is_fp8(weight) is is_fp8]
            yield from planned(alike, self.bucket_bytes, self.ranks.num_shards)

    def _is_fp8(self, weight: Weight) -> bool:
        return self.in_fp8 and all(is_matrix_of_fp8(*tensor) for tensor in weight.tensors)

    def _scales_bytes(self) -> int:
        sizes = [size for w in self.weights if self._is_fp8(w) for _, size in w.tensors]
        return sum(_SCALE_BYTES * prod(scales_size(size)) for size in sizes)


class OwnMemory:
    """Two buckets on one device, in memory that torch allocates."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._slots: dict[int, Tensor] = {}

    def __call__(self, slot: int, num_bytes: int) -> Tensor:
        import torch

        if slot not in self._slots or self._slots[slot].nbytes < num_bytes:
            self._slots.pop(slot, None)
            self._slots[slot] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._slots[slot]


def planned(weights: Sequence[Weight], limit: int, num_shards: int) -> Iterator[list[Weight]]:
    """Neighbours of one type that fit into `limit` bytes together, with what packing receives."""
    bucket: list[Weight] = []
    size = 0
    for taken in _taken_together(weights):
        received = sum(weight.local.nbytes for weight in taken) if num_shards > 1 else 0
        needed = sum(map(_whole_bytes, taken)) + received
        if bucket and (size + needed > limit or taken[0].local.dtype != bucket[0].local.dtype):
            yield bucket
            bucket, size = [], 0
        bucket += taken
        size += needed
    if bucket:
        yield bucket


def _taken_together(weights: Sequence[Weight]) -> list[list[Weight]]:
    """Each weight by itself, or with those that servers must get in the same request."""
    taken: dict[str, list[Weight]] = {}
    for weight in weights:
        taken.setdefault(taken_as(weight.tensors[0][0]), []).append(weight)
    return list(taken.values())


def taken_as(name: str) -> str:
    """Return a name that is the same for tensors that servers must get in the same request."""
    return _TAKEN_TOGETHER.sub(".", name)


def _whole_bytes(weight: Weight) -> int:
    return weight.local.element_size() * _count(weight)


def _count(weight: Weight) -> int:
    return sum(prod(size) for _, size in weight.tensors)


def _packed(weights: Sequence[Weight], ranks: Ranks, memory: Callable[[int], Tensor]) -> Bucket:
    num_bytes = sum(_whole_bytes(weight) for weight in weights)
    flat = memory(num_bytes)[:num_bytes]
    wholes = _views(flat, weights)
    for weight, whole in zip(weights, wholes, strict=True):
        weight.place(weight.local, ranks.shard, whole)
    _take_shards(weights, wholes, ranks)
    named = [
        (name, tensor)
        for weight, whole in zip(weights, wholes, strict=True)
        for (name, _), tensor in zip(weight.tensors, whole, strict=True)
    ]
    return Bucket(flat, named)


def _quantised(
    bucket: Bucket, memory: Callable[[int], Tensor], scales: list[tuple[str, Tensor]]
) -> Bucket:
    """Return the bucket with its matrices as FP8; the scales of their blocks are added to
    `scales`."""
    import torch

    num_bytes = sum(whole.numel() for _, whole in bucket.tensors)
    flat = memory(num_bytes)[:num_bytes]
    parts = flat.view(torch.float8_e4m3fn).split([w.numel() for _, w in bucket.tensors])
    named: list[tuple[str, Tensor]] = []
    for (name, whole), part in zip(bucket.tensors, parts, strict=True):
        to = part.view(whole.shape)
        own = torch.empty(scales_size(tuple(whole.shape)), device=whole.device)
        quantise(whole, to, own)
        named.append((name, to))
        scales.append((name + SCALES, own))
    return Bucket(flat, named)


def _copied(tensors: Sequence[tuple[str, Tensor]], memory: Callable[[int], Tensor]) -> Bucket:
    """Tensors of float32 as one bucket."""
    import torch

    num_bytes = sum(tensor.nbytes for _, tensor in tensors)
    flat = memory(num_bytes)[:num_bytes]
    parts = flat.view(torch.float32).split([tensor.numel() for _, tensor in tensors])
    pairs = zip(tensors, parts, strict=True)
    return Bucket(flat, [(name, part.view(own.shape).copy_(own)) for (name, own), part in pairs])


def _views(flat: Tensor, weights: Sequence[Weight]) -> list[list[Tensor]]:
    """Each weight's whole tensors in `flat`."""
    rest = flat.view(weights[0].local.dtype)
    views: list[list[Tensor]] = []
    for weight in weights:
        own: list[Tensor] = []
        for _, size in weight.tensors:
            own.append(rest[: prod(size)].view(size))
            rest = rest[prod(size) :]
        views.append(own)
    return views


def _give_shards(weights: Sequence[Weight], ranks: Ranks, to: int) -> None:
    """This rank's shards of a bucket, in one message."""
    import torch

    if given := [w.local.reshape(-1) for w in weights if w.gives(ranks.shard, to)]:
        ranks.send(torch.cat(given), to)


def _take_shards(weights: Sequence[Weight], wholes: list[list[Tensor]], ranks: Ranks) -> None:
    """The other ranks' shards of a bucket, to where they belong."""
    pairs = list(zip(weights, wholes, strict=True))
    given = {
        shard: [(w, whole) for w, whole in pairs if w.gives(shard, ranks.shard)]
        for shard in range(ranks.num_shards)
    }
    counts = {shard: [w.local.numel() for w, _ in parts] for shard, parts in given.items()}
    memory = weights[0].local.new_empty(max(map(sum, counts.values())))
    for shard, parts in given.items():
        if not parts:
            continue
        received = memory[: sum(counts[shard])]
        ranks.receive(received, shard)
        for (weight, whole), part in zip(parts, received.split(counts[shard]), strict=True):
            weight.place(part.view(weight.local.shape), shard, whole)
