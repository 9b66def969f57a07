"""Linear layers that can carry an adapter: low-rank matrices that train while the layer is frozen.

An adapter adds `alpha / rank * B A x` to what a layer gives for x. One of Megatron's layers holds
several of HF's modules, such as q, k and v: each has its own A [rank, inputs] and B [outputs,
rank], as `peft` has them. Tensor-parallel ranks share out B of a layer that is split by outputs,
and A of one that is split by inputs; the other matrix they have alike. Between layers each of them
has some of the tokens, so what goes between ranks is `rank` numbers a token and module.

A routed expert has adapters of its own. Its tokens come together on all ranks that share it, and
its outputs are summed over them, whether it is adapted or not: nothing else goes between them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn

from engines.families.common.family import ModelShape
from engines.families.common.tensors import HfTensor, module_of
from engines.megatron.hf.qkv import gates_behind, is_qkv
from engines.megatron.parallel import Layout
from engines.megatron.spec import Lora

PARAMETERS = ".adapter."
"""part of the name of every parameter of an adapter, and of no other"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How ranks hold the matrices of one linear layer together."""

    ranks: int
    """that share out one side of them"""
    rank: int
    """this one among them"""
    group: dist.ProcessGroup
    moves: bool = False
    """whether each of them has some of the tokens on the layer's other side"""
    sums: bool = False
    """whether the gradients of what they have alike are sums over tensor-parallel ranks"""

    @classmethod
    def of(cls, module: Column | Row | WholeLinear, layout: Layout) -> Sharing:
        parallel, are_several = layout.parallel, layout.parallel.tp > 1
        if isinstance(module, WholeLinear):
            return cls(1, 0, layout.tp_group, sums=are_several)
        if module.is_expert:
            ranks = parallel.expert_tp  # as many as tensor-parallel ranks, or one
            return cls(ranks, layout.expert_tp_rank, layout.expert_tp_group, sums=ranks > 1)
        return cls(parallel.tp, layout.tp_rank, layout.tp_group, are_several, are_several)


class Adapter(nn.Module):
    """The low-rank matrices of one linear layer."""

    def __init__(
        self,
        weight: Tensor,
        tensors: Sequence[HfTensor],
        lora: Lora,
        shape: ModelShape,
        sharing: Sharing,
        seed: int,
    ) -> None:
        """`weight`: this rank's part of the layer's weight, which `tensors` make up."""
        super().__init__()
        self.rank, self.scale = lora.rank, lora.alpha / lora.rank
        self.is_on = True
        self.sharing = sharing
        self.by_inputs = tensors[0].is_split_by_inputs
        """whether ranks share out the layer's inputs; else its outputs"""
        self.modules_of_parts: list[tuple[str, int]] = []
        """of each part of the layer's outputs: HF's module, and how many of them are this rank's"""
        names = [part for tensor in tensors for part in tensor.rows]
        self.groups = shape.kv_groups // sharing.ranks if is_qkv(names) else None
        """of heads on this rank, in which the outputs of q, k and v lie"""
        self.gated_head = shape.head_dim if shape.has_output_gate else None
        """numbers of a head whose gate lies behind the queries of its group"""
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        self.hf_modules: dict[str, str] = {}
        """the adapted modules' whole names by their last parts"""
        for tensor in tensors:
            module, name = module_of(tensor.name)
            is_target = lora.targets is None or name in lora.targets
            if is_target:
                self.hf_modules[name] = module
                self.a[name] = self._first(weight, module, seed)
            for part in tensor.rows:
                size = shape.axes[part] // (1 if self.by_inputs else sharing.ranks)
                if is_target:
                    self.b[f"{name}_{len(self.modules_of_parts)}"] = self._second(weight, size)
                self.modules_of_parts.append((name, size))

    def _first(self, weight: Tensor, module: str, seed: int) -> nn.Parameter:
        """Return A as `peft` draws it, from a seed of the module's own: the same in every
        layout."""
        ranks = self.sharing.ranks if self.by_inputs else 1
        inputs = weight.shape[1] * ranks
        digest = hashlib.sha256(f"{seed} {module}".encode()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        whole = torch.empty(self.rank, inputs).uniform_(-1, 1, generator=draw) / math.sqrt(inputs)
        return self._placed(whole.chunk(ranks, 1)[self.sharing.rank % ranks], weight, 1)

    def _second(self, weight: Tensor, rows: int) -> nn.Parameter:
        return self._placed(torch.zeros(rows, self.rank), weight, 0)

    def _placed(self, value: Tensor, weight: Tensor, split_dim: int) -> nn.Parameter:
        """Return a parameter that Megatron treats as what it is on these ranks: each one's own, or
        the same on all of them, each with a part of its gradient, which are then summed."""
        parameter: Any = nn.Parameter(value.to(weight.device, weight.dtype).contiguous())
        is_shared = self.sharing.ranks > 1 and split_dim == int(self.by_inputs)
        is_alike = self.sharing.sums and not is_shared
        set_tensor_model_parallel_attributes(parameter, not is_alike, split_dim, 1)
        parameter.sequence_parallel = is_alike
        # Whether data-parallel ranks have it alike: not an expert that is on some of them only.
        parameter.allreduce = getattr(weight, "allreduce", True)
        return parameter

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what is added to the layer's outputs for its inputs, both as this rank has
        them."""
        narrow = F.linear(inputs, torch.cat(list(self.a.values())))
        if self.sharing.moves:
            move = (
                reduce_scatter_to_sequence_parallel_region
                if self.by_inputs
                else gather_from_sequence_parallel_region
            )
            narrow = move(narrow, group=self.sharing.group)
        return self._widened(narrow)

    def _widened(self, narrow: Tensor) -> Tensor:
        """[..., modules * rank] -> [..., the layer's outputs]."""
        of_module = dict(zip(self.a, narrow.split(self.rank, -1), strict=True))
        parts: list[Tensor] = []
        for number, (name, size) in enumerate(self.modules_of_parts):
            if name in of_module:
                second = self.b[f"{name}_{number}"].to(narrow.dtype)
                parts.append(F.linear(of_module[name], second * self.scale))
            else:
                parts.append(narrow.new_zeros(*narrow.shape[:-1], size))
        if self.groups is None:
            return torch.cat(parts, -1)
        by_group = [part.unflatten(-1, (self.groups, -1)) for part in parts]
        if self.gated_head is not None:
            by_group[0] = gates_behind(by_group[0], narrow.dim(), self.gated_head)
        return torch.cat(by_group, -1).flatten(-2)

    @torch.no_grad()
    def merged(self, weight: Tensor) -> Tensor:
        """The layer's `weight` with what this adds to it, in a memory of its own."""
        first = torch.cat(list(self.a.values())).float()
        return (weight.float() + self._widened(first.t()).t()).to(weight.dtype)

    def split_dims(self) -> dict[str, int]:
        """Return the split axes of the parameters that ranks share out, by name."""
        shared = self.a if self.by_inputs else self.b
        letter = "a" if self.by_inputs else "b"
        return {f"{letter}.{name}": int(self.by_inputs) for name in shared}

    @torch.no_grad()
    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """(name as in `peft`'s file, tensor) of all matrices, gathered over the ranks."""
        for name, module in self.hf_modules.items():
            own = [self.b[key] for key in self.b if key.rpartition("_")[0] == name]
            parts = [part.detach() if self.by_inputs else self._gathered(part, 0) for part in own]
            first = self._gathered(self.a[name], 1) if self.by_inputs else self.a[name].detach()
            yield f"base_model.model.{module}.lora_A.weight", first
            yield f"base_model.model.{module}.lora_B.weight", torch.cat(parts)

    def _gathered(self, part: Tensor, dim: int) -> Tensor:
        if self.sharing.ranks == 1:
            return part.detach()
        parts = [torch.empty_like(part) for _ in range(self.sharing.ranks)]
        dist.all_gather(parts, part.detach(), group=self.sharing.group)
        return torch.cat(parts, dim)


class Column(ColumnParallelLinear):
    """Megatron's linear layer, split by outputs, with an adapter if it is given one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.adapter: Adapter | None = None

    def forward(self, input_: Tensor, *given: Any, **named: Any) -> Any:
        output, bias = super().forward(input_, *given, **named)
        return _added(self.adapter, input_, output), bias

    def sharded_state_dict(self, *given: Any, **named: Any) -> Any:
        return _with_adapter(self, super().sharded_state_dict(*given, **named), *given, **named)


class Row(RowParallelLinear):
    """Megatron's linear layer, split by inputs, with an adapter if it is given one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.adapter: Adapter | None = None

    def forward(self, input_: Tensor) -> Any:
        output, bias = super().forward(input_)
        return _added(self.adapter, input_, output), bias

    def sharded_state_dict(self, *given: Any, **named: Any) -> Any:
        return _with_adapter(self, super().sharded_state_dict(*given, **named), *given, **named)


class WholeLinear(nn.Linear):
    """A product that every tensor-parallel rank computes whole, of its own tokens, with an adapter
    if it is given one. Megatron sums the gradients over these ranks."""

    def __init__(self, inputs: int, outputs: int, config: TransformerConfig) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyrefly: ignore[missing-attribute]
        self.adapter: Adapter | None = None

    def forward(self, input: Tensor) -> Tensor:
        return _added(self.adapter, input, super().forward(input))


def _added(adapter: Adapter | None, inputs: Tensor, outputs: Tensor) -> Tensor:
    return outputs if adapter is None or not adapter.is_on else outputs + adapter(inputs)


def _with_adapter(
    layer: Column | Row,
    found: dict[str, Any],
    prefix: str = "",
    sharded_offsets: tuple[Any, ...] = (),
    metadata: Any = None,
) -> dict[str, Any]:
    """The layer's sharded state dict `found`, which takes an adapter's matrices to be the same on
    all tensor-parallel ranks."""
    if layer.adapter is None:
        return found
    return found | make_sharded_tensors_for_checkpoint(
        layer.adapter.state_dict(keep_vars=True),
        f"{prefix}adapter.",
        layer.adapter.split_dims(),
        sharded_offsets,
        tp_group=cast("dist.ProcessGroup", layer.tp_group),
        dp_cp_group=metadata["dp_cp_group"],
    )


def add_adapters(
    network: nn.Module, lora: Lora, shape: ModelShape, layout: Layout, seed: int
) -> None:
    """Freeze a network, and give its linear layers adapters, which add nothing yet."""
    model: Any = network
    network.requires_grad_(False)
    experts = shape.mixture.num_experts if shape.mixture else 0
    first_expert = layout.ep_rank * (experts // layout.parallel.ep)
    for number, layer in enumerate(model.decoder.layers):
        first = layer.layer_number - 1 - number
        for name, module in layer.named_modules():
            if isinstance(module, Column | Row | WholeLinear):
                parameter = f"decoder.layers.{number}.{name}.weight"
                tensors = shape.family.tensors.of_parameter(parameter, first, first_expert)
                weight, sharing = cast("Tensor", module.weight), Sharing.of(module, layout)
                adapter = Adapter(weight, tensors, lora, shape, sharing, seed)
                module.adapter = adapter if len(adapter.a) else None
    if layout.is_first_stage:
        # A layer that is computed again has no backward pass if no input of it needs a gradient.
        model.embedding.register_forward_hook(lambda *called: called[-1].requires_grad_())


def adapter_of(network: nn.Module, parameter: str) -> Adapter | None:
    """Return what is added to this parameter; None for all but the weights of adapted layers."""
    module, _, name = parameter.rpartition(".")
    return getattr(network.get_submodule(module), "adapter", None) if name == "weight" else None  # pyrefly: ignore[bad-return]


def adapters_of(network: nn.Module) -> Iterator[Adapter]:
    return (module for module in network.modules() if isinstance(module, Adapter))


@contextmanager
def adapters_off(network: nn.Module) -> Generator[None]:
    """The model as it was before it was adapted, until the block ends."""
    for adapter in adapters_of(network):
        adapter.is_on = False
    try:
        yield
    finally:
        for adapter in adapters_of(network):
            adapter.is_on = True


def whole_adapters(network: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """Return all matrices under `peft`'s names, on the CPU of every rank; all ranks call it."""
    own = {name: t.cpu().clone() for a in adapters_of(network) for name, t in a.whole()}
    for group in (layout.ep_group, layout.pp_group):
        if (ranks := group.size()) > 1:
            of_ranks: list[dict[str, Tensor]] = [{}] * ranks
            dist.all_gather_object(of_ranks, own, group=group)
            own = {name: tensor for each in of_ranks for name, tensor in each.items()}
    return own
