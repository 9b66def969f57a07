"""What a model family is, and the shape of one of its models. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines.families.common.experts import Mixture
from engines.families.common.model_config import Rope
from engines.families.common.tensors import (
    LAYERS,
    Axes,
    HfTensor,
    TensorTable,
    is_computed,
    matrix_weights,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def dense_flops(
    shape: ModelShape, lengths: NDArray[np.int64], num_logit_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Forward and backward of each sequence of these lengths, logits on so many of its tokens.

    A weight costs 6 FLOPs a token (2 forward, 4 backward); causal attention 6 x heads x head size
    x length squared a layer, which already counts only the lower triangle: of a layer with a window
    less the square of what is longer than that. Half of it is for scores, half for values, whose
    heads may have another size. No recomputation.
    """
    # Floats: the squares of long sequences times a large model's sizes pass 2**63.
    tokens, rows = lengths.astype("float64"), num_logit_rows.astype("float64")
    outputs = 1 if shape.has_value_head else shape.vocab
    weights = shape.num_matmul_params * tokens + shape.hidden * outputs * rows
    seen = shape.num_layers * tokens**2
    if shape.window is not None:
        seen -= len(shape.window.layers) * (tokens - shape.window.size).clip(min=0) ** 2
    width = (shape.head_dim + shape.value_dim) / 2
    return 6.0 * (weights + shape.heads * width * seen)


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of an attention that makes all heads' keys and values from one small vector of each
    token, its latent (MLA). A part of each head is rotated, whose key all heads share."""

    query_rank: int | None
    """numbers of the vector that queries are made from; None: the hidden state itself"""
    rank: int
    """numbers of the vector that keys and values are made from"""
    rotated: int
    """last numbers of each query and key that are rotated"""
    values: int
    """numbers of one head's values"""
    scale: float
    """scores are multiplied by it"""


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: all that the engines must know of it and of no other.

    Adding one is described in `docs/own-model.md`.
    """

    architecture: str
    """as config.json's `architectures` names it, e.g. "Qwen3ForCausalLM" """
    read_shape: Callable[[Mapping[str, Any]], ModelShape]
    """from config.json; raises InputError for a feature that the family has and we do not"""
    tensors: TensorTable
    """its Megatron parameters also say which norms a layer has (`engines/megatron/layers.py`)"""
    sglang: str
    """`module:attribute` of SGLang's class, or of ours that is derived from it"""
    sglang_dense: str | None = None
    """`module:attribute` of its trunk, if `engines/sglang/cpu/row_invariant.py` computes what it
    does"""
    megatron: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of Megatron's TransformerConfig that differ from those of a plain dense decoder"""
    activation: str = "silu"
    """of the gate in a feed-forward, as `engines/megatron/model.py` knows it"""
    flops: Callable[..., Any] = dense_flops
    """of sequences: `dense_flops` has the signature"""


@dataclass(frozen=True, slots=True)
class Window:
    """Layers in which a token does not see all that came before it."""

    size: int
    """tokens that one sees, itself among them"""
    layers: frozenset[int]
    """their numbers, from 0"""
    rope: Rope
    """their own rotary embedding"""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The decoder that a config.json describes."""

    family: Family
    num_layers: int
    hidden: int
    heads: int
    kv_groups: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    rope: Rope
    max_positions: int
    is_tied: bool
    has_value_head: bool = False
    """one number a token in place of logits: a critic"""
    mixture: Mixture | None = None
    """the experts of some or all layers; None: all layers are dense"""
    num_extra_layers: int = 0
    """layers for multi-token prediction, stored behind the others: kept as they are"""
    window: Window | None = None
    """None: every layer sees all tokens"""
    embedding_scale: float = 1.0
    """that a token's embedding is multiplied with where it enters the first layer"""
    latent: Latent | None = None
    """None: keys and values come from the hidden state, as Llama's do"""

    @property
    def value_dim(self) -> int:
        """Numbers of one head's values."""
        return self.latent.values if self.latent else self.head_dim

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head, or of its part, that rotary embedding gets."""
        return self.latent.rotated if self.latent else self.head_dim

    @property
    def axes(self) -> Axes:
        return {
            "vocab": self.vocab,
            "hidden": self.hidden,
            "queries": self.heads * self.head_dim,
            "keys": self.kv_groups * self.head_dim,
            "head": self.head_dim,
            "ffn": self.ffn,
            **(self.mixture.axes if self.mixture else {}),
            **(self._latent_axes(self.latent) if self.latent else {}),
        }

    def _latent_axes(self, latent: Latent) -> Axes:
        unrotated = self.head_dim - latent.rotated
        return {
            "query_latent": latent.query_rank or 0,
            "latent": latent.rank,
            "latent_and_rotated_key": latent.rank + latent.rotated,
            "keys_and_values": self.heads * (unrotated + latent.values),
            "values": self.heads * latent.values,
        }

    @property
    def num_routed_layers(self) -> int:
        """Layers that have experts."""
        return sum(map(self.is_routed, range(self.num_layers)))

    def is_routed(self, layer: int) -> bool:
        """Return whether this layer has experts."""
        return self.mixture is not None and self.mixture.is_routed(layer)

    @property
    def num_matmul_params(self) -> int:
        """Weights of the layers' matrices that one token passes, embedding and output layer left
        out: of the routed experts only those that it is sent to."""
        table, axes, routed = self.family.tensors, self.axes, self.num_routed_layers
        dense = self.num_layers - routed
        total = dense * matrix_weights(table.layer, axes) if dense else 0
        if self.mixture is not None:
            each = matrix_weights(table.expert_layer, axes)
            total += routed * (each + self.mixture.per_token * matrix_weights(table.expert, axes))
        return total

    def is_kept(self, name: str) -> bool:
        """Return whether a stored tensor is not trained, and kept as it is: a table of rotary
        angles, or a part of a layer for multi-token prediction."""
        last = self.num_layers + self.num_extra_layers
        extra = tuple(f"{LAYERS}.{number}." for number in range(self.num_layers, last))
        return is_computed(name) or name.startswith(extra)

    def expected_tensors(self) -> Iterator[HfTensor]:
        """Every tensor of the HF folder."""
        return self.family.tensors.expected(
            self.num_layers, is_tied=self.is_tied, mixture=self.mixture
        )
