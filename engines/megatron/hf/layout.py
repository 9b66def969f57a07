"""Layouts of weights: Megatron's on one side, HF's on the other.

Megatron fuses q, k and v into one matrix, by KV group `[q..., k, v]`, and the feed-forward's gate
and up projection into another; under tensor parallelism each rank holds a slice of both. Under
expert parallelism each rank holds some experts, and every rank as many. This file knows those
layouts and nothing else: it reads and writes tensors through the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engines.families.common.family import ModelShape
from engines.families.common.tensors import EMBEDDING, OUTPUT, HfTensor
from engines.megatron.adapters import PARAMETERS, Adapter, adapter_of
from engines.megatron.hf.qkv import grouped, is_qkv, ungrouped
from engines.megatron.parallel import Layout
from engines.megatron.spec import Parallel

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
    of_ranks: tuple[tuple[HfTensor, ...], ...] = ()
    """of a routed expert: what this parameter is made of on each expert-parallel rank in turn"""
    adapter: Adapter | None = None
    """what is added to it"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return what its rows are, by axis: one HF tensor may hold several parts."""
        return tuple(part for tensor in self.tensors for part in tensor.rows)

    @property
    def is_stacked(self) -> bool:
        """Return whether it holds all experts of a layer, of which each rank has some."""
        return self.tensors[0].is_stacked

    @property
    def is_qkv(self) -> bool:
        return is_qkv(self.parts)


@dataclass(frozen=True, slots=True)
class ServedWeight:
    """A weight as `engines.weights` pushes it: whole tensors, put together from shards.

    Of a routed expert these are all experts of the same local number: its shards are those of every
    expert-parallel rank.
    """

    weight: MappedWeight
    shape: ModelShape
    parallel: Parallel

    @property
    def local(self) -> Tensor:
        own, adapter = self.weight.param.detach(), self.weight.adapter
        return own if adapter is None else adapter.merged(own)

    @property
    def tp(self) -> int:
        """Ranks that share each tensor."""
        if self.weight.split_dim is None:
            return 1
        if self.weight.is_stacked:
            return self.parallel.ep
        return self.parallel.expert_tp if self.weight.of_ranks else self.parallel.tp

    @property
    def num_shards(self) -> int:
        """Ranks next to each other that hold all of it together."""
        return self.tp * max(len(self.weight.of_ranks), 1)

    @property
    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """HF names and whole sizes."""
        axes = {**self.shape.axes, "value": 1}
        ranks = self.weight.of_ranks or (self.weight.tensors,)
        return [(tensor.name, tensor.size(axes)) for tensors in ranks for tensor in tensors]

    def gives(self, index: int, to: int) -> bool:
        """Return whether rank `index` of a stage has a shard that rank `to` needs for the whole."""
        return index != to and index // self.num_shards == to // self.num_shards

    @torch.no_grad()
    def place(self, shard: Tensor, index: int, whole: Sequence[Tensor]) -> None:
        """Copy the shard of rank `index` to where it belongs."""
        owner, part = divmod(index % self.num_shards, self.tp)
        count = len(self.weight.tensors)
        parts = _parted(self.weight, whole[owner * count :][:count], self.shape)
        if self.weight.is_qkv:
            self._place_groups(shard, part, parts)
            return
        by = self.tp if self.weight.split_dim == 0 else 1
        sizes = [len(target) // by for target in parts]
        for piece, target in zip(shard.split(sizes), parts, strict=True):
            if self.weight.split_dim is None:
                target.copy_(piece)
            else:
                target.chunk(self.tp, self.weight.split_dim)[part].copy_(piece)

    def _place_groups(self, shard: Tensor, index: int, parts: Sequence[Tensor]) -> None:
        """A rank has whole KV groups, of [heads of the group + k + v, ...] each."""
        groups = self.shape.kv_groups
        own = groups // self.tp
        pieces = ungrouped(shard.reshape(own, -1, *shard.shape[1:]), self.shape)
        for piece, target in zip(pieces, parts, strict=True):
            held = target.view(groups, -1, *target.shape[1:])
            held.narrow(0, own * index, own).copy_(piece)


def mapped_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> Iterator[MappedWeight]:
    """Yield every parameter of this rank but those of adapters, in the model's own order; then what
    routers keep beside."""
    first_layer, table = _first_layer(model), shape.family.tensors
    kept = (pair for pair in model.named_buffers() if pair[0].endswith(".expert_bias"))
    for name, param in chain(model.named_parameters(), kept):
        if PARAMETERS in name:
            continue
        if ".local_experts." in name:
            routed = _expert_weight(name, param, first_layer, shape, layout)
            yield replace(routed, adapter=adapter_of(model, name))
            continue
        is_split = getattr(param, "tensor_model_parallel", False) and layout.parallel.tp > 1
        split_dim: int | None = param.partition_dim if is_split else None  # pyrefly: ignore[missing-attribute]
        if shape.has_value_head and name in VALUE_HEAD:
            yield MappedWeight(param, (VALUE_HEAD[name],), None)
            continue
        tensors = table.of_parameter(name, first_layer)
        if tensors[0].name == OUTPUT and shape.is_tied:
            # The last pipeline stage's own copy of the embedding.
            tensors = (replace(tensors[0], name=EMBEDDING),)
        if tensors[0].is_stacked:
            split_dim = 0 if layout.parallel.ep > 1 else None
        yield MappedWeight(param, tensors, split_dim, adapter=adapter_of(model, name))


def _expert_weight(
    name: str, param: Tensor, first_layer: int, shape: ModelShape, layout: Layout
) -> MappedWeight:
    """Map a weight of a routed expert: gate and up are split by rows, down by columns."""
    parallel, table = layout.parallel, shape.family.tensors
    own = (shape.mixture.num_experts if shape.mixture else 0) // parallel.ep
    of_ranks = tuple(
        table.of_parameter(name, first_layer, rank * own) for rank in range(parallel.ep)
    )
    split_dim = (0 if ".linear_fc1." in name else 1) if parallel.expert_tp > 1 else None
    return MappedWeight(param, of_ranks[layout.ep_rank], split_dim, of_ranks)


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
        # A slice of whole groups stays in that order.
        return _slice(weight, grouped(parts, shape), 0, layout).reshape(-1, *parts[0].shape[1:])
    if weight.split_dim is None:
        return torch.cat(parts)
    return torch.cat([_slice(weight, part, weight.split_dim, layout) for part in parts])


def _parted(weight: MappedWeight, stored: Sequence[Tensor], shape: ModelShape) -> list[Tensor]:
    """The parts that HF's tensors hold, one below another."""
    parts: list[Tensor] = []
    for tensor, held in zip(weight.tensors, stored, strict=True):
        sizes = [shape.axes[part] for part in tensor.rows] if len(tensor.rows) > 1 else []
        parts += held.split(sizes) if sizes else [held]
    return parts


def _slice(weight: MappedWeight, tensor: Tensor, dim: int, layout: Layout) -> Tensor:
    parallel = layout.parallel
    if weight.is_stacked:
        return tensor.chunk(parallel.ep, dim)[layout.ep_rank]
    if weight.of_ranks:
        return tensor.chunk(parallel.expert_tp, dim)[layout.expert_tp_rank]
    return tensor.chunk(parallel.tp, dim)[layout.tp_rank]


@torch.no_grad()
def gathered_tensors(
    model: nn.Module, shape: ModelShape, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    """(HF name, whole tensor) of every weight, on every rank: a collective over TP, EP and PP.

    Tensors stay on the device: use or copy each before taking the next. A tied output layer is not
    repeated.
    """
    if layout.parallel.pp == 1:
        yield from _stage_tensors(model, shape, layout)
        return
    served = served_weights(model, shape, layout)
    manifest = [(*tensor, weight.local.dtype) for weight in served for tensor in weight.tensors]
    manifests: list[list[tuple[str, tuple[int, ...], torch.dtype]]] = [[]] * layout.parallel.pp
    dist.all_gather_object(manifests, manifest, group=layout.pp_group)
    place = served[0].local.device
    for stage, entries in enumerate(manifests):
        source = dist.get_global_rank(layout.pp_group, stage)
        own = _stage_tensors(model, shape, layout) if stage == layout.pp_rank else None
        for name, size, dtype in entries:
            # One at a time: a stage with its experts need not fit into the memory of a rank.
            tensor = next(own)[1] if own else torch.empty(size, dtype=dtype, device=place)
            tensor = tensor.contiguous()
            dist.broadcast(tensor, src=source, group=layout.pp_group)
            yield name, tensor


def _stage_tensors(
    model: nn.Module, shape: ModelShape, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    for served in served_weights(model, shape, layout):
        names = [name for name, _ in served.tensors]
        yield from zip(names, _unfuse(served, layout), strict=True)


def _own_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> Iterator[MappedWeight]:
    """Yield the weights of this stage, without the last stage's own copy of the embedding."""
    for weight in mapped_weights(model, shape, layout):
        if weight.names != (EMBEDDING,) or layout.is_first_stage:
            yield weight


def served_weights(model: nn.Module, shape: ModelShape, layout: Layout) -> list[ServedWeight]:
    """Return what this rank's pipeline stage gives to servers."""
    own = _own_weights(model, shape, layout)
    return [ServedWeight(weight, shape, layout.parallel) for weight in own]


def _unfuse(served: ServedWeight, layout: Layout) -> list[Tensor]:
    """The inverse of `_fuse`, gathered over the ranks that hold the shards."""
    whole = [served.local.new_empty(size) for _, size in served.tensors]
    for index, shard in enumerate(_gather(served, layout)):
        served.place(shard, index, whole)
    return whole


def _gather(served: ServedWeight, layout: Layout) -> list[Tensor]:
    local = served.local
    if served.num_shards == 1:
        return [local]
    slices = [torch.empty_like(local) for _ in range(served.num_shards)]
    is_routed = served.weight.of_ranks or served.weight.is_stacked
    group = layout.expert_group if is_routed else layout.tp_group
    dist.all_gather(slices, local.contiguous(), group=group)
    return slices
