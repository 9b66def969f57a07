"""What a model family is, and the shape of one of its models. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines.families.common.flops import dense_flops
from engines.families.common.rope import Rope
from engines.families.common.tensors import Axes, HfTensor, TensorTable

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig


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
    sglang: str
    """`module:attribute` of SGLang's class"""
    sglang_dense: str | None = None
    """`module:attribute` of its trunk, if `engines/sglang/cpu/dense.py` computes what it does"""
    megatron: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of Megatron's TransformerConfig that differ from those of a plain dense decoder"""
    layer_spec: Callable[[TransformerConfig], ModuleSpec] | None = None
    """Megatron's layer; None: `engines/megatron/layers.py`. Imports torch when it is called"""
    flops: Callable[..., Any] = dense_flops
    """of sequences: `dense_flops` has the signature"""


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

    @property
    def axes(self) -> Axes:
        return {
            "vocab": self.vocab,
            "hidden": self.hidden,
            "queries": self.heads * self.head_dim,
            "keys": self.kv_groups * self.head_dim,
            "head": self.head_dim,
            "ffn": self.ffn,
        }

    @property
    def num_matmul_params(self) -> int:
        """Weights of a layer stack's matrices, embedding and output layer left out."""
        return self.num_layers * self.family.tensors.matrix_weights(self.axes)

    def expected_tensors(self) -> Iterator[HfTensor]:
        """Every tensor of the HF folder."""
        return self.family.tensors.expected(self.num_layers, is_tied=self.is_tied)
