"""Layouts of weights: Megatron's on one side, HF's on the other.

Megatron fuses q, k and v into one matrix, by KV group `[q..., k, v]`, and the feed-forward's gate
and up projection into another; under tensor parallelism each rank holds a slice of both. This file
knows those layouts and nothing else: it reads and writes tensors through the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engines.families.common.family import ModelShape
from engines.families.common.tensors import EMBEDDING, OUTPUT, HfTensor
from engines.megatron.parallel import Layout

VALUE_HEAD = {
    "output_layer.weight": HfTensor("score.weight", ("value",), "hidden"),
    "output_layer.bias": HfTensor("score.bias", ("value",)),
}
"""as transformers' token classifiers name it, so that they read an exported critic"""


@dataclass(frozen=True, slots=True)
class MappedWeight:
    """One Megatron parameter of this rank and the HF tensors it is made of."""

    param: Tensor
    tensors: tuple[HfTensor, ...]
    split_dim: int | None
    """the dimension that tensor-parallel ranks share; None if each holds the whole"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def parts(self) -> tuple[str, ...]:
        """Its rows, by axis: one HF tensor may hold several parts."""
        return tuple(part for tensor in self.tensors for part in tensor.rows)

    @property
    def is_qkv(self) -> bool:
        return self.parts == ("queries", "keys", "keys")


@dataclass(frozen=True, slots=True)
class ServedWeight:
    """The same as `engines.weights` pushes it: whole tensors, put together from shards."""

    weight: MappedWeight
    shape: ModelShape
    tp: int

    @property
    def local(self) -> Tensor:
        return self.weight.param.detach()

    @property
    def is_split(self) -> bool:
        return self.weight.split_dim is not None

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """HF names and whole sizes."""
        axes = {**self.shape.axes, "value": 1}
        return [(tensor.name, tensor.size(axes)) for tensor in self.weight.tensors]

    @torch.no_grad()
    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        """Copy the shard of tensor-parallel rank `index` to where it belongs."""
        parts = _parted(self.weight, whole, self.shape)
        if self.weight.is_qkv:
            self._place_groups(shard, index, parts)
            return
        for piece, target in zip(shard.chunk(len(parts)), parts, strict=True):
            if self.weight.split_dim is None:
                target.copy_(piece)
            else:
                target.chunk(self.tp, self.weight.split_dim)[index].copy_(piece)

    def _place_groups(self, shard: Tensor, index: int, parts: Sequence[Tensor]) -> None:
        """A rank has whole KV groups, of [heads of the group + k + v, ...] each."""
        groups, width = self.shape.kv_groups, self.shape.head_dim
        own = groups // self.tp if self.is_split else groups
        by_group = shard.reshape(own, -1, *shard.shape[1:])
        pieces = by_group.split([self.shape.heads // groups * width, width, width], 1)
        for piece, target in zip(pieces, parts, strict=True):
            held = target.view(groups, -1, *target.shape[1:])
            held.narrow(0, own * index if self.is_split else 0, own).copy_(piece)


def mapped_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> Iterator[MappedWeight]:
    """Every parameter of this rank's pipeline stage, in the model's own order."""
    first_layer = _first_layer(model)
    for name, param in model.named_parameters():
        is_split = getattr(param, "tensor_model_parallel", False) and layout.parallel.tp > 1
        split_dim: int | None = param.partition_dim if is_split else None  # type: ignore[attr-defined]
        if shape.has_value_head and name in VALUE_HEAD:
            yield MappedWeight(param, (VALUE_HEAD[name],), None)
            continue
        tensors = shape.family.tensors.of_parameter(name, first_layer)
        if tensors[0].name == OUTPUT and shape.is_tied:
            # The last pipeline stage's own copy of the embedding.
            tensors = (replace(tensors[0], name=EMBEDDING),)
        yield MappedWeight(param, tensors, split_dim)


def _first_layer(model: nn.Module) -> int:
    decoder: Any = model.decoder
    return decoder.layers[0].layer_number - 1 if len(decoder.layers) else 0


@torch.no_grad()
def load_weights(
    model: nn.Module,
    shape: ModelShape,
    layout: Layout,
    read: Callable[[str], Tensor],
    stored: Container[str],
) -> None:
    """Fill this rank's parameters from `read(HF name)`.

    A value head that is not among the `stored` names keeps the zeros it was made with.
    """
    for weight in mapped_weights(model, shape, layout):
        if weight.tensors[0] in VALUE_HEAD.values() and weight.names[0] not in stored:
            continue
        whole = _fuse(weight, [read(name) for name in weight.names], shape, layout)
        weight.param.copy_(whole)


def _fuse(weight: MappedWeight, stored: list[Tensor], shape: ModelShape, layout: Layout) -> Tensor:
    """This rank's slice of the fused tensor."""
    parts = _parted(weight, stored, shape)
    if weight.is_qkv:
        # [G, heads of the group + k + v, ...]: a slice of whole groups stays in that order.
        by_group = [part.reshape(shape.kv_groups, -1, *part.shape[1:]) for part in parts]
        fused = torch.cat(by_group, 1)
        return _slice(fused, 0, layout).reshape(-1, *parts[0].shape[1:])
    if weight.split_dim is None:
        return torch.cat(parts)
    return torch.cat([_slice(part, weight.split_dim, layout) for part in parts])


def _parted(weight: MappedWeight, stored: Sequence[Tensor], shape: ModelShape) -> list[Tensor]:
    """The parts that HF's tensors hold, one below another."""
    parts: list[Tensor] = []
    for tensor, held in zip(weight.tensors, stored, strict=True):
        sizes = [shape.axes[part] for part in tensor.rows] if len(tensor.rows) > 1 else []
        parts += held.split(sizes) if sizes else [held]
    return parts


def _slice(tensor: Tensor, dim: int, layout: Layout) -> Tensor:
    return tensor.chunk(layout.parallel.tp, dim)[layout.tp_rank]


@torch.no_grad()
def gathered_tensors(
    model: nn.Module, shape: ModelShape, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    """(HF name, whole tensor) of every weight, on every rank: a collective over TP and PP.

    Tensors stay on the device: use or copy each before taking the next. A tied output layer is not
    repeated.
    """
    if layout.parallel.pp == 1:
        yield from _stage_tensors(model, shape, layout)
        return
    own = list(_stage_tensors(model, shape, layout))
    manifest = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in own]
    manifests: list[list[tuple[str, tuple[int, ...], torch.dtype]]] = [[]] * layout.parallel.pp
    dist.all_gather_object(manifests, manifest, group=layout.pp_group)
    place = own[0][1].device
    for stage, entries in enumerate(manifests):
        source = dist.get_global_rank(layout.pp_group, stage)
        for index, (name, size, dtype) in enumerate(entries):
            is_mine = stage == layout.pp_rank
            tensor = own[index][1] if is_mine else torch.empty(size, dtype=dtype, device=place)
            tensor = tensor.contiguous()
            dist.broadcast(tensor, src=source, group=layout.pp_group)
            yield name, tensor


def _stage_tensors(
    model: nn.Module, shape: ModelShape, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    for weight in _own_weights(model, shape, layout):
        yield from zip(weight.names, _unfuse(weight, shape, layout), strict=True)


def _own_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> Iterator[MappedWeight]:
    """Of this stage, without the last stage's own copy of the embedding."""
    for weight in mapped_weights(model, shape, layout):
        if weight.names != (EMBEDDING,) or layout.is_first_stage:
            yield weight


def served_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> list[ServedWeight]:
    """What this rank's pipeline stage gives to servers."""
    tp = layout.parallel.tp
    return [ServedWeight(weight, shape, tp) for weight in _own_weights(model, shape, layout)]


def _unfuse(weight: MappedWeight, shape: ModelShape, layout: Layout) -> list[Tensor]:
    """The inverse of `_fuse`, gathered over tensor-parallel ranks."""
    served = ServedWeight(weight, shape, layout.parallel.tp)
    whole = [weight.param.new_empty(size) for _, size in served.tensors]
    for index, shard in enumerate(_gather(weight, layout)):
        served.place(shard, index, whole)
    return whole


def _gather(weight: MappedWeight, layout: Layout) -> list[Tensor]:
    local = weight.param.detach()
    if weight.split_dim is None:
        return [local]
    slices = [torch.empty_like(local) for _ in range(layout.parallel.tp)]
    dist.all_gather(slices, local.contiguous(), group=layout.tp_group)
    return slices
