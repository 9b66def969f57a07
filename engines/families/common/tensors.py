"""The tensors of a HF folder: files, names and shapes, by the Megatron parameter that holds them.

A family has one table of them, from which everything else follows: what a folder must hold, how
weights go from HF to Megatron and back, and how many FLOPs a token costs. No torch: a check reads
it on a laptop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
_LAYERS = "model.layers"
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_COMPUTED = re.compile(r"(.+\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")

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

    def size(self, axes: Axes) -> Size:
        rows = sum(axes[part] for part in self.rows)
        return (rows,) if self.columns is None else (rows, axes[self.columns])


@dataclass(frozen=True, slots=True)
class TensorTable:
    """A family's HF tensors by Megatron parameter, in Megatron's order of rows."""

    top: Mapping[str, HfTensor]
    """outside of the layers"""
    layer: Mapping[str, tuple[HfTensor, ...]]
    """of one layer; both sides without the layer's prefix"""

    def of_parameter(self, name: str, first_layer: int = 0) -> tuple[HfTensor, ...]:
        """What a Megatron parameter of the stage that starts at layer `first_layer` is made of.

        Example: "decoder.layers.0.mlp.linear_fc2.weight", 4 -> model.layers.4.mlp.down_proj.weight
        """
        if name in self.top:
            return (self.top[name],)
        match = _LAYER.fullmatch(name)
        if match is None or match[2] not in self.layer:
            raise KeyError(f"no HF name for Megatron parameter {name}")
        return self._of_layer(int(match[1]) + first_layer, match[2])

    def expected(self, num_layers: int, *, is_tied: bool) -> Iterator[HfTensor]:
        """Every tensor that a model of so many layers is made of."""
        yield from (t for t in self.top.values() if t.name != OUTPUT or not is_tied)
        for layer in range(num_layers):
            for parameter in self.layer:
                yield from self._of_layer(layer, parameter)

    def matrix_weights(self, axes: Axes) -> int:
        """Weights of one layer's matrices: each costs one multiplication a token."""
        tensors = [tensor for stored in self.layer.values() for tensor in stored]
        return sum(prod(t.size(axes)) for t in tensors if t.columns is not None)

    def _of_layer(self, layer: int, parameter: str) -> tuple[HfTensor, ...]:
        at = f"{_LAYERS}.{layer}"
        return tuple(replace(t, name=f"{at}.{t.name}") for t in self.layer[parameter])


def is_computed(name: str) -> bool:
    """Whether a stored tensor is a table of rotary angles, which every engine computes itself."""
    return _COMPUTED.fullmatch(name) is not None
