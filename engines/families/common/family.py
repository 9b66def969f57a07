"""What a model family is, and the shape of one of its models. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from engines.families.common.experts import Mixture
from engines.families.common.model_config import Rope
from engines.families.common.tensors import (
    LAYERS,
    Axes,
    HfTensor,
    Parameters,
    TensorTable,
    is_computed,
    matrix_weights,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Classifier = Literal["SequenceClassification", "TokenClassification"]
"""models with a value head, as transformers names them"""
QUERIES, GATED_QUERIES = "queries", "queries_and_gates"
"""axes of heads' queries: alone, and each head's with the gate of what it gives"""


def dense_flops(
    shape: ModelShape, lengths: NDArray[np.int64], num_logit_rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Forward and backward of each sequence of these lengths, logits on so many of its tokens.

    A weight costs 6 FLOPs a token (2 forward, 4 backward); causal attention 6 x heads x head size
    x length squared a layer, which already counts only the lower triangle: of a layer with a window
    less the square of what is longer than that. Half of it is for scores, half for values, whose
    heads may have another size. A gated delta net costs 18 x heads x numbers of a head's state: a
    token reads the state twice, and adds to it once. No recomputation.
    """
    # Floats: the squares of long sequences times a large model's sizes pass 2**63.
    tokens, rows = lengths.astype("float64"), num_logit_rows.astype("float64")
    outputs = 1 if shape.has_value_head else shape.vocab
    weights = shape.num_matmul_params * tokens + shape.hidden * outputs * rows
    seen = shape.num_attention_layers * tokens**2
    if shape.window is not None:
        seen -= len(shape.window.layers) * (tokens - shape.window.size).clip(min=0) ** 2
    width = (shape.head_dim + shape.value_dim) / 2
    states = len(shape.delta.layers) * shape.delta.state if shape.delta else 0
    return 6.0 * (weights + shape.heads * width * seen + 3 * states * tokens)


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
    no_cpu_server: str = ""
    """why SGLang cannot serve it without a GPU; empty: it can"""
    served_keys: tuple[str, ...] = ()
    """fields of config.json that transformers does without, and SGLang does not"""
    sglang_dense: str | None = None
    """`module:attribute` of its trunk, if `engines/sglang/cpu/row_invariant.py` computes what it
    does"""
    megatron: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of Megatron's TransformerConfig that differ from those of a plain dense decoder"""
    classifiers: Mapping[Classifier, str | None] = field(
        default_factory=dict["Classifier", str | None]
    )
    """transformers' classes of models with a value head that are not named as `architecture` is;
    None: it has no such class"""
    kept: tuple[str, ...] = ()
    """how names of stored tensors for multi-token prediction begin, where they are no layers'"""
    activation: str = "silu"
    """of the gate in a feed-forward, as `engines/megatron/model.py` knows it"""
    flops: Callable[..., Any] = dense_flops
    """of sequences: `dense_flops` has the signature"""

    def classifier(self, kind: Classifier) -> str | None:
        """Return the name of transformers' class; None where it has none."""
        return self.classifiers.get(kind, self.architecture.replace("CausalLM", kind))


@dataclass(frozen=True, slots=True)
class Window:
    """Layers in which a token does not see all that came before it."""

    size: int
    """tokens that one sees, itself among them"""
    layers: frozenset[int]
    """their numbers, from 0"""
    rope: Rope
    """their own rotary embedding"""


CHUNK = 64
"""tokens that a delta net takes at once: its triangular systems grow with the square"""


@dataclass(frozen=True, slots=True)
class Delta:
    """Layers with a gated delta net in place of attention: each head keeps a matrix from token to
    token, its state, which a token lets fade, corrects by the delta rule, and reads."""

    layers: frozenset[int]
    """their numbers, from 0"""
    key_heads: int
    value_heads: int
    """a multiple: neighbouring ones share a head's queries and keys"""
    key_dim: int
    """numbers of one head's queries and keys"""
    value_dim: int
    kernel: int
    """tokens that the convolution of queries, keys and values sees, the last one itself"""

    @property
    def state(self) -> int:
        """Return how many numbers all heads' states in one layer have."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def axes(self) -> dict[str, int]:
        return {
            "delta_keys": self.key_heads * self.key_dim,
            "delta_values": self.value_heads * self.value_dim,
            "delta_heads": self.value_heads,
            "delta_value": self.value_dim,
            "kernel": self.kernel,
        }


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
    delta: Delta | None = None
    """None: every layer attends"""

    @property
    def has_output_gate(self) -> bool:
        """Return whether what attention gives is multiplied by the sigmoid of a gate."""
        return bool(self.family.megatron.get("attention_output_gate"))

    @property
    def query_axis(self) -> str:
        return GATED_QUERIES if self.has_output_gate else QUERIES

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
            QUERIES: self.heads * self.head_dim,
            GATED_QUERIES: 2 * self.heads * self.head_dim,
            "keys": self.kv_groups * self.head_dim,
            "head": self.head_dim,
            "heads": self.heads,
            "ffn": self.ffn,
            **(self.mixture.axes if self.mixture else {}),
            **(self._latent_axes(self.latent) if self.latent else {}),
            **(self.delta.axes if self.delta else {}),
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

    def is_delta(self, layer: int) -> bool:
        """Return whether this layer has a gated delta net in place of attention."""
        return self.delta is not None and layer in self.delta.layers

    @property
    def num_attention_layers(self) -> int:
        return self.num_layers - (len(self.delta.layers) if self.delta else 0)

    def parameters_of(self, layer: int) -> Parameters:
        """A layer's part of the family's table, without routed experts."""
        table = self.family.tensors
        if self.is_routed(layer):
            return table.expert_layer
        return table.delta_layer if self.is_delta(layer) else table.layer

    @property
    def kinds(self) -> list[tuple[int, Parameters]]:
        """Parts of the family's table, each with the number of layers that have it, if any has."""
        table, routed = self.family.tensors, self.num_routed_layers
        delta = len(self.delta.layers) if self.delta else 0
        counted = [
            (self.num_layers - routed - delta, table.layer),
            (routed, table.expert_layer),
            (delta, table.delta_layer),
        ]
        return [(count, part) for count, part in counted if count]

    @property
    def num_matmul_params(self) -> int:
        """Weights of the layers' matrices that one token passes, embedding and output layer left
        out: of the routed experts only those that it is sent to."""
        axes = self.axes
        total = sum(count * matrix_weights(part, axes) for count, part in self.kinds)
        if self.mixture is not None:
            table = self.family.tensors
            expert = matrix_weights(table.expert, axes)
            expert += matrix_weights(table.expert_layer, axes, stacked=True)
            total += self.num_routed_layers * self.mixture.per_token * expert
        return total

    def is_kept(self, name: str) -> bool:
        """Return whether a stored tensor is not trained, and kept as it is: a table of rotary
        angles, or a part of a layer for multi-token prediction."""
        last = self.num_layers + self.num_extra_layers
        extra = tuple(f"{LAYERS}.{number}." for number in range(self.num_layers, last))
        extra += self.family.kept
        return is_computed(name) or name.startswith(extra)

    def expected_tensors(self) -> Iterator[HfTensor]:
        """Every tensor of the HF folder."""
        return self.family.tensors.expected(
            map(self.parameters_of, range(self.num_layers)),
            is_tied=self.is_tied,
            num_experts=self.mixture.num_experts if self.mixture else 0,
        )
