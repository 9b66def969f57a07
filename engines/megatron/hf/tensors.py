"""A HF model's tensors: their files, names and shapes, by the Megatron parameter that holds them.

No torch: a check reads it on a laptop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engines.megatron.hf.config import ModelShape

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"

Size = tuple[int, ...]

_TOP = {
    "embedding.word_embeddings.weight": (EMBEDDING, ("vocab", "hidden")),
    "decoder.final_layernorm.weight": ("model.norm.weight", ("hidden",)),
    "output_layer.weight": (OUTPUT, ("vocab", "hidden")),
}
_IN_LAYER = {
    "input_layernorm.weight": (("input_layernorm.weight", ("hidden",)),),
    "pre_mlp_layernorm.weight": (("post_attention_layernorm.weight", ("hidden",)),),
    "self_attention.linear_qkv.weight": (
        ("self_attn.q_proj.weight", ("queries", "hidden")),
        ("self_attn.k_proj.weight", ("keys", "hidden")),
        ("self_attn.v_proj.weight", ("keys", "hidden")),
    ),
    "self_attention.linear_qkv.bias": (
        ("self_attn.q_proj.bias", ("queries",)),
        ("self_attn.k_proj.bias", ("keys",)),
        ("self_attn.v_proj.bias", ("keys",)),
    ),
    "self_attention.q_layernorm.weight": (("self_attn.q_norm.weight", ("head",)),),
    "self_attention.k_layernorm.weight": (("self_attn.k_norm.weight", ("head",)),),
    "self_attention.linear_proj.weight": (("self_attn.o_proj.weight", ("hidden", "queries")),),
    "mlp.linear_fc1.weight": (
        ("mlp.gate_proj.weight", ("ffn", "hidden")),
        ("mlp.up_proj.weight", ("ffn", "hidden")),
    ),
    "mlp.linear_fc2.weight": (("mlp.down_proj.weight", ("hidden", "ffn")),),
}
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_COMPUTED = re.compile(r"(.+\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")


@dataclass(frozen=True, slots=True)
class HfTensor:
    """One tensor of a HF folder. Example: name="model.norm.weight", size=(128,)"""

    name: str
    size: Size


def hf_names(name: str, first_layer: int = 0) -> tuple[str, ...]:
    """HF's names for a Megatron parameter of the stage that starts at layer `first_layer`.

    Example: "decoder.layers.0.mlp.linear_fc2.weight", 4 -> ("model.layers.4.mlp.down_proj.weight",)
    """
    if name in _TOP:
        return (_TOP[name][0],)
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _IN_LAYER:
        raise KeyError(f"no HF name for Megatron parameter {name}")
    layer = int(match[1]) + first_layer
    return tuple(f"model.layers.{layer}.{suffix}" for suffix, _ in _IN_LAYER[match[2]])


def expected_tensors(shape: ModelShape) -> Iterator[HfTensor]:
    """Every tensor that a model of this shape is made of."""
    sizes = {
        "vocab": shape.vocab,
        "hidden": shape.hidden,
        "queries": shape.heads * shape.head_dim,
        "keys": shape.kv_groups * shape.head_dim,
        "head": shape.head_dim,
        "ffn": shape.ffn,
    }
    for name, axes in _TOP.values():
        if name != OUTPUT or not shape.is_tied:
            yield HfTensor(name, tuple(sizes[axis] for axis in axes))
    for layer in range(shape.num_layers):
        for parameter, tensors in _IN_LAYER.items():
            if _has(shape, parameter):
                for suffix, axes in tensors:
                    name = f"model.layers.{layer}.{suffix}"
                    yield HfTensor(name, tuple(sizes[axis] for axis in axes))


def is_computed(name: str) -> bool:
    """Whether a stored tensor is a table of rotary angles, which every engine computes itself."""
    return _COMPUTED.fullmatch(name) is not None


def _has(shape: ModelShape, parameter: str) -> bool:
    """Whether the family's layers have this Megatron parameter."""
    if parameter.endswith(".bias"):
        return shape.has_qkv_bias
    if parameter.endswith(("q_layernorm.weight", "k_layernorm.weight")):
        return shape.has_qk_norm
    return True
