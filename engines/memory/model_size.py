"""What of a model's shape its memory depends on. Plain numbers: families that the engines do not
train can be described as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from engines.families.common.family import CHUNK, Delta, ModelShape
from engines.families.common.tensors import ROUTED, Axes, HfTensor, Parameters, linear_layers

_WHOLE = {("hidden",), ("head",), ("latent",), ("delta_value",)}
"""rows of vectors that every tensor-parallel rank has whole: the norms' weights"""
_OF_WHOLE_PARTS = {ROUTED, ("query_latent",), ("latent_and_rotated_key",)}
"""rows of what a router has, and of what makes latents, which no rank shares either"""
_QWEN3 = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8}
_LLAMA3 = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
_QWEN3_MOE = {
    **_QWEN3,
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
_GLM4_MOE = {
    "model_type": "glm4_moe",
    "head_dim": 128,
    "vocab_size": 151552,
    "num_key_value_heads": 8,
    "attention_bias": True,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
}


@dataclass(frozen=True, slots=True)
class LinearSize:
    """Rows and columns of matrices, added up."""

    shared: int
    """those that tensor-parallel ranks share out"""
    whole: int
    """the others"""
    are_routed: bool = False
    """whether they are of routed experts, which expert-parallel ranks share out as well"""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of weights, and of values that a token makes on its way."""

    num_layers: int
    hidden: int
    queries: int
    """heads x head size"""
    keys: int
    """KV heads x head size"""
    head_dim: int
    ffn: int
    """feed-forward width that one token passes: all experts together that it is sent to"""
    vocab: int
    is_tied: bool
    has_head_norms: bool
    split_weights: int
    """of all layers; tensor-parallel ranks share them out"""
    whole_weights: int
    """of all layers; every tensor-parallel rank has them all"""
    expert_weights: int = 0
    """of all layers' routed experts; expert-parallel ranks share them out as well"""
    experts_per_token: int = 0
    values_of_width: int = 5
    """that a trainer keeps of each number of a feed-forward's width; clamped ones keep more"""
    norms: int = 2
    """in one layer, of whole hidden states; one that is computed in fp32 counts twice, as it keeps
    as much as two in bf16"""
    has_value_head: bool = False
    cached: int = 0
    """of a layer and token that a server caches on every device; 0: keys and values, by head"""
    cached_layers: int | None = None
    """that cache something for each token; None: all"""
    delta_kept: int = 0
    """of a layer with a delta net and token that a trainer keeps, without norms and feed-forward"""
    delta_working: int = 0
    """that its backward pass makes again; both count twice what is fp32 in any trainer"""
    latents: int = 0
    """of a layer and token that a trainer keeps of latents and of what it makes of them; 0: keys
    and values are made from the hidden state"""
    linears: Mapping[str, Sequence[LinearSize]] = field(
        default_factory=dict[str, "Sequence[LinearSize]"]
    )
    """all layers' matrices that can be adapted, by the last parts of their modules' names"""

    @property
    def num_weights(self) -> int:
        """All of the model's, each once."""
        tops = 1 if self.is_tied or self.has_value_head else 2
        head = self.hidden + 1 if self.has_value_head else 0
        layers = self.split_weights + self.whole_weights + self.expert_weights
        return layers + tops * self.vocab * self.hidden + self.hidden + head


def _is_norm(stored: tuple[HfTensor, ...]) -> bool:
    sizes = [(t.rows, t.columns) for t in stored if t.name.endswith(".weight")]
    return sizes == [(("hidden",), None)]


def _is_whole(tensor: HfTensor) -> bool:
    return tensor.rows in _OF_WHOLE_PARTS or (tensor.columns is None and tensor.rows in _WHOLE)


def size_of(shape: ModelShape) -> ModelSize:
    """Return the size of a model that the engines train."""
    axes, mixture, table = shape.axes, shape.mixture, shape.family.tensors
    routed, kinds = shape.num_routed_layers, shape.kinds
    all_layers = [(n, t) for n, kind in kinds for stored in kind.values() for t in stored]
    layers = [(n, t) for n, t in all_layers if not t.is_stacked]
    num_all = sum(n * prod(t.size(axes)) for n, t in layers)
    num_whole = sum(n * prod(t.size(axes)) for n, t in layers if _is_whole(t))
    expert = [t for stored in table.expert.values() for t in stored]
    expert += [t for _, t in all_layers if t.is_stacked]
    ffn = shape.ffn
    if mixture is not None:
        passed = mixture.ffn * mixture.per_token + mixture.shared_ffn
        ffn = max(passed, ffn if routed < shape.num_layers else 0)
    return ModelSize(
        num_layers=shape.num_layers,
        hidden=shape.hidden,
        queries=axes["queries"],
        keys=axes["keys"],
        head_dim=shape.head_dim,
        ffn=ffn,
        vocab=shape.vocab,
        is_tied=shape.is_tied,
        has_head_norms=shape.latent is None
        and any("self_attention.q_layernorm.weight" in kind for _, kind in kinds),
        norms=max(sum(map(_is_norm, kind.values())) for _, kind in kinds)
        * (2 if shape.family.megatron.get("layernorm_zero_centered_gamma") else 1),
        split_weights=num_all - num_whole,
        whole_weights=num_whole,
        expert_weights=routed
        * axes.get("experts", 0)
        * sum(prod(t.size_of_one(axes)) for t in expert),
        experts_per_token=mixture.per_token if mixture else 0,
        values_of_width=7 if shape.family.megatron.get("activation_func_clamp_value") else 5,
        has_value_head=shape.has_value_head,
        cached=axes.get("latent_and_rotated_key", 0),
        cached_layers=shape.num_attention_layers,
        delta_kept=_delta_kept(shape.delta) if shape.delta else 0,
        delta_working=_delta_working(shape.delta) if shape.delta else 0,
        latents=_latents(axes) if shape.latent else 0,
        linears=_linears(axes, [*kinds, (routed * axes.get("experts", 0), table.expert)]),
    )


def _linears(axes: Axes, kinds: Sequence[tuple[int, Parameters]]) -> dict[str, list[LinearSize]]:
    """`kinds`: how often a model has what."""
    found: dict[str, list[LinearSize]] = {}
    for count, parameters in kinds:
        for name, tensor in linear_layers(parameters) if count else ():
            split, other = tensor.size(axes)
            if tensor.is_split_by_inputs:
                split, other = other, split
            if _is_whole(tensor):
                split, other = 0, split + other
            is_routed = ".experts." in tensor.name
            found.setdefault(name, []).append(LinearSize(count * split, count * other, is_routed))
    return found


def _latents(axes: Axes) -> int:
    """Both latents as their norms take and give them, and the heads' outputs as the last product
    takes them: without what fills values up to the size of keys."""
    return 2 * axes["query_latent"] + 2 * axes["latent"] + axes["values"]


def _delta_kept(delta: Delta) -> int:
    """Return the values that it keeps of a token: what the first product gives; what is read, its
    norm's input and its gate's silu and product in fp32, and what the last product takes."""
    made = 2 * delta.axes["delta_keys"] + 2 * delta.axes["delta_values"] + 2 * delta.value_heads
    return made + (1 + 2 * 4 + 1) * delta.axes["delta_values"]


def _delta_working(delta: Delta) -> int:
    """Return the values of a token that the backward pass makes again, in fp32: of each head
    queries, keys and values of its own, those that beta and decay change, the systems with their
    solutions, and states of chunks; and half as much of gradients at once."""
    keys, values = delta.key_dim, delta.value_dim
    each = 9 * keys + 8 * values + 5 * CHUNK + 3 * keys * values // CHUNK
    mixed = 2 * delta.axes["delta_keys"] + delta.axes["delta_values"]
    return 3 * (delta.value_heads * each + 2 * mixed)


def _config(family: Mapping[str, Any], *sizes: int, is_tied: bool = False) -> dict[str, Any]:
    """`sizes`: hidden, layers, heads, feed-forward, feed-forward of an expert."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    written = dict(zip((*names, "moe_intermediate_size"), sizes, strict=False))
    return {**family, **written, "tie_word_embeddings": is_tied}


KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Qwen3-0.6B": _config(_QWEN3, 1024, 28, 16, 3072, is_tied=True),
    "Qwen3-1.7B": _config(_QWEN3, 2048, 28, 16, 6144, is_tied=True),
    "Qwen3-4B": _config(_QWEN3, 2560, 36, 32, 9728, is_tied=True),
    "Qwen3-8B": _config(_QWEN3, 4096, 36, 32, 12288),
    "Qwen3-14B": _config(_QWEN3, 5120, 40, 40, 17408),
    "Qwen3-32B": _config(_QWEN3, 5120, 64, 64, 25600),
    "Llama-3-8B": _config(_LLAMA3, 4096, 32, 32, 14336),
    "Llama-3-70B": _config(_LLAMA3, 8192, 80, 64, 28672),
    "Qwen3-30B-A3B": _config(_QWEN3_MOE, 2048, 48, 32, 6144, 768),
    "GLM-4.5-Air": _config(_GLM4_MOE, 4096, 46, 96, 10944, 1408),
    "GLM-4.5": _config(
        {**_GLM4_MOE, "use_qk_norm": True, "n_routed_experts": 160, "first_k_dense_replace": 3},
        *(5120, 92, 96, 12288, 1536),
    ),
}
"""config.json, without what no size depends on. Layers for multi-token prediction are left out, as
they are not trained"""
