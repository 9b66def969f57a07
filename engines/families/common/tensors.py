"""The tensors of a HF folder: files, names and shapes, by the Megatron parameter that holds them.

A family has one table of them, from which everything else follows: what a folder must hold, how
weights go from HF to Megatron and back, and how many FLOPs a token costs. No torch: a check reads
it on a laptop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
LAYERS = "model.layers"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(.+)")
_COMPUTED = re.compile(r"(.+\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")

ROUTED = ("experts",)
"""rows of what a router has"""

Size = tuple[int, ...]
Axes = Mapping[str, int]
"""length of each named axis of one model, e.g. {"hidden": 1024, "queries": 2048}"""


@dataclass(frozen=True, slots=True)
class HfTensor:
    """One tensor of a HF folder, its shape by named axes.

    Its rows are one part of the Megatron parameter, or several below one another. Example:
    HfTensor("self_attn.qkv_proj.weight", ("queries", "keys", "keys"), "hidden")
    """

    name: str
    rows: tuple[str, ...]
    columns: str | None = None
    """None: a vector"""
    is_convolution: bool = False
    """over a token and those before it, of each row by itself: stored with an axis of 1 between"""
    is_stacked: bool = False
    """it holds one of these for each expert, along an axis of its own before the others"""

    def size(self, axes: Axes) -> Size:
        own = self.size_of_one(axes)
        return (axes["experts"], *own) if self.is_stacked else own

    def size_of_one(self, axes: Axes) -> Size:
        """Return the size for one expert."""
        rows = sum(axes[part] for part in self.rows)
        if self.columns is None:
            return (rows,)
        return (rows, *((1,) if self.is_convolution else ()), axes[self.columns])

    @property
    def is_split_by_inputs(self) -> bool:
        """Return whether tensor-parallel ranks share out a matrix's columns, not its rows."""
        return self.rows == ("hidden",)


Parameters = Mapping[str, tuple[HfTensor, ...]]
"""HF tensors by the Megatron parameter that they make up, in Megatron's order of rows"""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """A family's HF tensors by Megatron parameter, in Megatron's order of rows."""

    top: Mapping[str, HfTensor]
    """outside of the layers"""
    layer: Parameters
    """of one dense layer; both sides without the layer's prefix"""
    expert_layer: Parameters = field(default_factory=dict[str, tuple[HfTensor, ...]])
    """of one layer with experts, without the routed experts"""
    expert: Parameters = field(default_factory=dict[str, tuple[HfTensor, ...]])
    """of one routed expert; Megatron's side without the expert's prefix, `{}` in HF's for its
    number"""
    delta_layer: Parameters = field(default_factory=dict[str, tuple[HfTensor, ...]])
    """of one layer with a gated delta net in place of attention"""

    def of_parameter(
        self, name: str, first_layer: int = 0, first_expert: int = 0
    ) -> tuple[HfTensor, ...]:
        """Return what a Megatron parameter of the rank whose first layer and expert these are is
        made of.

        Example: "decoder.layers.0.mlp.linear_fc2.weight", 4 -> model.layers.4.mlp.down_proj.weight
        """
        if name in self.top:
            return (self.top[name],)
        match = _LAYER.fullmatch(name)
        if match is not None:
            layer, parameter = int(match[1]) + first_layer, match[2]
            of_expert = _EXPERT.fullmatch(parameter)
            if of_expert is not None and of_expert[2] in self.expert:
                return self.of_expert(layer, int(of_expert[1]) + first_expert, of_expert[2])
            for known in (self.layer, self.expert_layer, self.delta_layer):
                if parameter in known:
                    return _of_layer(layer, known[parameter])
        raise KeyError(f"no HF name for Megatron parameter {name}")

    def of_expert(self, layer: int, number: int, parameter: str) -> tuple[HfTensor, ...]:
        """Example: 4, 17, "linear_fc2.weight" -> model.layers.4.mlp.experts.17.down_proj.weight"""
        own = (replace(t, name=t.name.format(number)) for t in self.expert[parameter])
        return _of_layer(layer, tuple(own))

    def expected(
        self, layers: Iterable[Parameters], *, is_tied: bool, num_experts: int
    ) -> Iterator[HfTensor]:
        """Every tensor of a model that has these `layers`, each one of the table's kinds."""
        yield from (t for t in self.top.values() if t.name != OUTPUT or not is_tied)
        for layer, own in enumerate(layers):
            for tensors in own.values():
                yield from _of_layer(layer, tensors)
            for number in range(num_experts if own is self.expert_layer else 0):
                for parameter in self.expert:
                    yield from self.of_expert(layer, number, parameter)


def matrix_weights(parameters: Parameters, axes: Axes, *, stacked: bool = False) -> int:
    """Count the weights of all matrices among them: each weight costs one multiplication a
    token. `stacked`: those of one expert instead, of what holds all experts."""
    tensors = [t for stored in parameters.values() for t in stored if t.is_stacked is stacked]
    return sum(prod(t.size_of_one(axes)) for t in tensors if t.columns is not None)


def _of_layer(layer: int, tensors: tuple[HfTensor, ...]) -> tuple[HfTensor, ...]:
    return tuple(replace(t, name=f"{LAYERS}.{layer}.{t.name}") for t in tensors)


def module_of(tensor: str) -> tuple[str, str]:
    """The HF module of a weight, and the last part of its name. Example:
    "model.layers.4.mlp.down_proj.weight" -> "model.layers.4.mlp.down_proj", "down_proj" """
    module = tensor.removesuffix(".weight")
    return module, module.rpartition(".")[2]


def linear_layers(parameters: Parameters) -> Iterator[tuple[str, HfTensor]]:
    """The matrices among them that can be adapted, with the last parts of their modules' names: all
    but a router's, which chooses, a convolution's, and what holds all experts: these stay."""
    for tensor in (tensor for stored in parameters.values() for tensor in stored):
        is_layer = not tensor.is_convolution and not tensor.is_stacked
        if tensor.columns is not None and tensor.rows != ROUTED and is_layer:
            yield module_of(tensor.name)[1], tensor


def is_computed(name: str) -> bool:
    """Return whether a stored tensor is a table of rotary angles, which every engine computes
    itself.
    """
    return _COMPUTED.fullmatch(name) is not None
