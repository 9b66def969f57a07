"""Shapes of models that are much used, as their config.json says them: for the table in the docs,
and for a base whose folder is out of reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.families.common.registry import model_shape
from engines.memory.model_size import ModelSize, size_of

_QWEN3 = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8}
_LLAMA3 = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}


def _config(family: Mapping[str, Any], *sizes: int, is_tied: bool = False) -> dict[str, Any]:
    """`sizes`: hidden, layers, heads, feed-forward."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    written = dict(zip(names, sizes, strict=True))
    return {**family, **written, "tie_word_embeddings": is_tied}


DENSE: Mapping[str, Mapping[str, Any]] = {
    "Qwen3-0.6B": _config(_QWEN3, 1024, 28, 16, 3072, is_tied=True),
    "Qwen3-1.7B": _config(_QWEN3, 2048, 28, 16, 6144, is_tied=True),
    "Qwen3-4B": _config(_QWEN3, 2560, 36, 32, 9728, is_tied=True),
    "Qwen3-8B": _config(_QWEN3, 4096, 36, 32, 12288),
    "Qwen3-14B": _config(_QWEN3, 5120, 40, 40, 17408),
    "Qwen3-32B": _config(_QWEN3, 5120, 64, 64, 25600),
    "Llama-3-8B": _config(_LLAMA3, 4096, 32, 32, 14336),
    "Llama-3-70B": _config(_LLAMA3, 8192, 80, 64, 28672),
}
"""config.json, without what no size depends on"""


@dataclass(frozen=True, slots=True)
class _Experts:
    """A mixture of experts: dense layers first, then layers of which a token passes a few."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    expert_ffn: int
    experts: int
    per_token: int
    shared: int = 0
    """experts that every token passes"""
    dense_layers: int = 0
    dense_ffn: int = 0
    has_head_norms: bool = True
    has_qkv_bias: bool = False
    head_dim: int = 128

    def size(self) -> ModelSize:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        routed_layers = self.layers - self.dense_layers
        attention = self.hidden * (2 * queries + 2 * keys)
        attention += self.has_qkv_bias * (queries + 2 * keys)
        mlp = 3 * self.hidden * self.expert_ffn
        dense = self.dense_layers * 3 * self.hidden * self.dense_ffn
        router = self.hidden * self.experts
        norms = 2 * self.hidden + self.has_head_norms * 2 * self.head_dim
        return ModelSize(
            num_layers=self.layers,
            hidden=self.hidden,
            queries=queries,
            keys=keys,
            head_dim=self.head_dim,
            ffn=self.expert_ffn * (self.per_token + self.shared),
            vocab=self.vocab,
            is_tied=False,
            has_head_norms=self.has_head_norms,
            split_weights=self.layers * attention + dense + routed_layers * self.shared * mlp,
            whole_weights=self.layers * norms + routed_layers * router,
            expert_weights=routed_layers * self.experts * mlp,
            experts_per_token=self.per_token,
        )


_MIXTURES: Mapping[str, _Experts] = {
    "Qwen3-30B-A3B": _Experts(2048, 48, 32, 4, 151936, expert_ffn=768, experts=128, per_token=8),
    "GLM-4.5-Air": _Experts(
        *(4096, 46, 96, 8, 151552), expert_ffn=1408, experts=128, per_token=8, shared=1,
        dense_layers=1, dense_ffn=10944, has_head_norms=False, has_qkv_bias=True,
    ),
    "GLM-4.5": _Experts(
        *(5120, 92, 96, 8, 151552), expert_ffn=1536, experts=160, per_token=8, shared=1,
        dense_layers=3, dense_ffn=12288, has_qkv_bias=True,
    ),
}  # fmt: skip
"""without their layers for multi-token prediction. The engines do not train or serve them yet"""


def known_sizes() -> dict[str, ModelSize]:
    """By the model's name, smallest first within each kind."""
    dense = {name: size_of(model_shape(config)) for name, config in DENSE.items()}
    return dense | {name: experts.size() for name, experts in _MIXTURES.items()}


def is_trainable(name: str) -> bool:
    """Whether the engines can train a known model."""
    return name in DENSE
