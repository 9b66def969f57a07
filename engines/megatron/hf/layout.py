"""Layouts of weights: Megatron's on one side, HF's on the other.

Megatron fuses q, k and v into one matrix, by KV group `[q..., k, v]`, and the feed-forward's gate
and up projection into another; under tensor parallelism each rank holds a slice of both. This file
knows those layouts and nothing else: it reads and writes tensors through the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
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


def _parted(weight: MappedWeight, stored: list[Tensor], shape: ModelShape) -> list[Tensor]:
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

    Tensors stay on the device and may share memory with the parameters: use or copy each before
    taking the next. A tied output layer is not repeated.
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
    for weight in mapped_weights(model, shape, layout):
        is_copy = weight.names == (EMBEDDING,) and not layout.is_first_stage
        if not is_copy:
            yield from zip(weight.names, _unfuse(weight, shape, layout), strict=True)


def _unfuse(weight: MappedWeight, shape: ModelShape, layout: Layout) -> list[Tensor]:
    """The inverse of `_fuse`, gathered over tensor-parallel ranks."""
    parts = iter(_gathered_parts(weight, shape, layout))
    by_tensor = [[next(parts) for _ in tensor.rows] for tensor in weight.tensors]
    return [torch.cat(held) if len(held) > 1 else held[0] for held in by_tensor]


def _gathered_parts(weight: MappedWeight, shape: ModelShape, layout: Layout) -> list[Tensor]:
    slices = _gather(weight, layout)
    if weight.is_qkv:
        fused = torch.cat(slices) if len(slices) > 1 else slices[0]
        by_group = fused.reshape(shape.kv_groups, -1, *fused.shape[1:])
        heads = shape.heads // shape.kv_groups * shape.head_dim
        parts = by_group.split([heads, shape.head_dim, shape.head_dim], 1)
        return [part.reshape(-1, *fused.shape[1:]) for part in parts]
    pieces = [piece.chunk(len(weight.parts)) for piece in slices]
    dim = weight.split_dim or 0
    by_name = [list(same) for same in zip(*pieces, strict=True)]
    return [torch.cat(same, dim) if len(same) > 1 else same[0] for same in by_name]


def _gather(weight: MappedWeight, layout: Layout) -> list[Tensor]:
    local = weight.param.detach()
    if weight.split_dim is None:
        return [local]
    slices = [torch.empty_like(local) for _ in range(layout.parallel.tp)]
    dist.all_gather(slices, local.contiguous(), group=layout.tp_group)
    return slices
