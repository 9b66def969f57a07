"""Layouts of weights: Megatron's on one side, HF's on the other.

Megatron fuses q, k and v into one matrix, by KV group `[q..., k, v]`, and the feed-forward's gate
and up projection into another; under tensor parallelism each rank holds a slice of both. This file
knows those layouts and nothing else: it reads and writes tensors through the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engines.megatron.hf.config import ModelShape
from engines.megatron.hf.tensors import EMBEDDING, OUTPUT, hf_names
from engines.megatron.parallel import Layout

VALUE_HEAD = {"output_layer.weight": "score.weight", "output_layer.bias": "score.bias"}
"""as transformers' token classifiers name it, so that they read an exported critic"""


@dataclass(frozen=True, slots=True)
class MappedWeight:
    """One Megatron parameter of this rank and the HF tensors it is made of."""

    param: Tensor
    names: tuple[str, ...]
    split_dim: int | None
    """the dimension that tensor-parallel ranks share; None if each holds the whole"""

    @property
    def is_qkv(self) -> bool:
        return "q_proj" in self.names[0]


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
        names, size = self.weight.names, list(self.local.shape)
        if self.weight.split_dim is not None:
            size[self.weight.split_dim] *= self.tp
        if not self.weight.is_qkv:
            return [(name, (size[0] // len(names), *size[1:])) for name in names]
        groups = self.shape.kv_groups
        rows = [groups * heads * self.shape.head_dim for heads in self._heads]
        return [(name, (count, *size[1:])) for name, count in zip(names, rows, strict=True)]

    @property
    def _heads(self) -> tuple[int, int, int]:
        """Of q, k and v in each KV group."""
        return self.shape.heads // self.shape.kv_groups, 1, 1

    @torch.no_grad()
    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        """Copy the shard of tensor-parallel rank `index` to where it belongs."""
        if self.weight.is_qkv:
            # [G, heads of the group + k + v, ...]: a rank has whole groups.
            groups = self.shape.kv_groups
            own = groups // self.tp if self.is_split else groups
            by_group = shard.reshape(own, -1, *shard.shape[1:])
            parts = by_group.split([heads * self.shape.head_dim for heads in self._heads], 1)
            for part, target in zip(parts, whole, strict=True):
                place = target.view(groups, -1, *target.shape[1:])
                place.narrow(0, own * index if self.is_split else 0, own).copy_(part)
            return
        for part, target in zip(shard.chunk(len(whole)), whole, strict=True):
            if self.weight.split_dim is None:
                target.copy_(part)
            else:
                target.chunk(self.tp, self.weight.split_dim)[index].copy_(part)


def mapped_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> Iterator[MappedWeight]:
    """Every parameter of this rank's pipeline stage, in the model's own order."""
    first_layer = _first_layer(model)
    for name, param in model.named_parameters():
        is_split = getattr(param, "tensor_model_parallel", False) and layout.parallel.tp > 1
        split_dim: int | None = param.partition_dim if is_split else None  # type: ignore[attr-defined]
        if shape.has_value_head and name in VALUE_HEAD:
            yield MappedWeight(param, (VALUE_HEAD[name],), None)
            continue
        names = hf_names(name, first_layer)
        if names == (OUTPUT,) and shape.is_tied:
            # The last pipeline stage's own copy of the embedding.
            names = (EMBEDDING,)
        yield MappedWeight(param, names, split_dim)


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
        if weight.names[0] in VALUE_HEAD.values() and weight.names[0] not in stored:
            continue
        whole = _fuse(weight, [read(name) for name in weight.names], shape, layout)
        weight.param.copy_(whole)


def _fuse(weight: MappedWeight, parts: list[Tensor], shape: ModelShape, layout: Layout) -> Tensor:
    """This rank's slice of the fused tensor."""
    if weight.is_qkv:
        # [G, heads of the group + k + v, ...]: a slice of whole groups stays in that order.
        by_group = [part.reshape(shape.kv_groups, -1, *part.shape[1:]) for part in parts]
        fused = torch.cat(by_group, 1)
        return _slice(fused, 0, layout).reshape(-1, *parts[0].shape[1:])
    if weight.split_dim is None:
        return torch.cat(parts)
    return torch.cat([_slice(part, weight.split_dim, layout) for part in parts])


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
