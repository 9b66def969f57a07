"""What dense decoders have in common: Llama's layer, from which each family differs a little."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from engines.families.common.family import Family, ModelShape
from engines.families.common.model_config import (
    SCALINGS,
    flag,
    only,
    positive,
    positive_int,
    read_rope,
    refuse,
)
from engines.families.common.tensors import EMBEDDING, OUTPUT, HfTensor, Parameters
from infra.errors import InputError

TOP = {
    "embedding.word_embeddings.weight": HfTensor(EMBEDDING, ("vocab",), "hidden"),
    "decoder.final_layernorm.weight": HfTensor("model.norm.weight", ("hidden",)),
    "output_layer.weight": HfTensor(OUTPUT, ("vocab",), "hidden"),
}
NORMS = {
    "input_layernorm.weight": (HfTensor("input_layernorm.weight", ("hidden",)),),
    "pre_mlp_layernorm.weight": (HfTensor("post_attention_layernorm.weight", ("hidden",)),),
}
QKV = {
    "self_attention.linear_qkv.weight": (
        HfTensor("self_attn.q_proj.weight", ("queries",), "hidden"),
        HfTensor("self_attn.k_proj.weight", ("keys",), "hidden"),
        HfTensor("self_attn.v_proj.weight", ("keys",), "hidden"),
    )
}
QKV_BIAS = {
    "self_attention.linear_qkv.bias": (
        HfTensor("self_attn.q_proj.bias", ("queries",)),
        HfTensor("self_attn.k_proj.bias", ("keys",)),
        HfTensor("self_attn.v_proj.bias", ("keys",)),
    )
}
HEAD_NORMS = {
    "self_attention.q_layernorm.weight": (HfTensor("self_attn.q_norm.weight", ("head",)),),
    "self_attention.k_layernorm.weight": (HfTensor("self_attn.k_norm.weight", ("head",)),),
}
ATTENTION_OUTPUT = {
    "self_attention.linear_proj.weight": (
        HfTensor("self_attn.o_proj.weight", ("hidden",), "queries"),
    )
}
GATE_AND_UP = {
    "mlp.linear_fc1.weight": (
        HfTensor("mlp.gate_proj.weight", ("ffn",), "hidden"),
        HfTensor("mlp.up_proj.weight", ("ffn",), "hidden"),
    )
}
FUSED_GATE_AND_UP = {
    "mlp.linear_fc1.weight": (HfTensor("mlp.gate_up_proj.weight", ("ffn", "ffn"), "hidden"),)
}
DOWN = {"mlp.linear_fc2.weight": (HfTensor("mlp.down_proj.weight", ("hidden",), "ffn"),)}


def output_norms(attention: str, ffn: str) -> Parameters:
    """Norms of what attention and feed-forward give, by their names in the HF folder."""
    return {
        "self_attention.linear_proj.norm.weight": (HfTensor(f"{attention}.weight", ("hidden",)),),
        "mlp.linear_fc2.norm.weight": (HfTensor(f"{ffn}.weight", ("hidden",)),),
    }


_REFUSED = {
    "attention_bias": "a bias on the attention output",
    "bias": "a bias on queries, keys and values",
    "dual_chunk_attention_config": "attention to chunks",
    "mlp_bias": "a bias in the feed-forward layers",
    "use_sliding_window": "sliding-window attention",
}
# The second one is read by SGLang alone.
_ONLY = {"is_causal": True, "rope_is_neox_style": True}


def dense_shape(
    family: Family,
    config: Mapping[str, Any],
    *,
    head_dim: int | None = None,
    norm_eps: float = 1e-6,
    max_positions: int = 32768,
    rotary_share: float | None = None,
    scalings: Sequence[str] = SCALINGS,
    allowed: Collection[str] = (),
) -> ModelShape:
    """The shape; `head_dim` and the others stand for fields that config.json leaves out.

    Raises InputError for a feature that is not supported, unless the family has it: `allowed`.
    """
    refuse(config, {key: what for key, what in _REFUSED.items() if key not in allowed})
    only(config, _ONLY)
    _refuse_quantised(config)
    layers = config.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise InputError("config.json: layer_types other than full_attention are not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InputError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")
    heads = positive_int(config, "num_attention_heads")
    hidden = positive_int(config, "hidden_size")
    head_dim = _head_dim(config, hidden, heads, head_dim)
    rope = read_rope(config, rotary_share, scalings)
    if int(head_dim * rope.share) % 2:
        raise InputError(
            f"config.json: partial_rotary_factor {rope.share} of head_dim {head_dim} is not an even"
            " number"
        )
    return ModelShape(
        family=family,
        num_layers=positive_int(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_groups=_kv_groups(config, heads),
        head_dim=head_dim,
        ffn=positive_int(config, "intermediate_size"),
        vocab=positive_int(config, "vocab_size"),
        norm_eps=positive(config, "rms_norm_eps", norm_eps),
        rope=rope,
        max_positions=positive_int(config, "max_position_embeddings", max_positions),
        is_tied=flag(config, "tie_word_embeddings"),
    )


def refuse_window(shape: ModelShape, window: Any, without: str) -> ModelShape:
    """The shape, where no position is out of a sliding window's reach. Raises InputError that names
    a model `without` one."""
    if window is not None:
        size = positive_int({"sliding_window": window}, "sliding_window")
        if size < shape.max_positions:
            raise InputError(
                f"config.json: sliding_window is {size}, below max_position_embeddings"
                f" ({shape.max_positions}): sliding-window attention is not supported; use a model"
                f" without it, such as {without}"
            )
    return shape


def is_fp8(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json says that its weights are FP8."""
    quantised = config.get("quantization_config")
    return isinstance(quantised, dict) and quantised.get("quant_method") == "fp8"


def _refuse_quantised(config: Mapping[str, Any]) -> None:
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        way = "; `tributary convert FOLDER NEW` writes FP8 in bfloat16" if is_fp8(config) else ""
        raise InputError(
            f"config.json: quantization_config is set ({method}): quantised weights cannot be"
            f" trained; give the folder of the model in float32, bfloat16 or float16{way}"
        )


def _kv_groups(config: Mapping[str, Any], heads: int) -> int:
    if config.get("num_key_value_heads") is None:
        return heads
    groups = positive_int(config, "num_key_value_heads")
    if heads % groups:
        raise InputError(
            f"config.json: num_key_value_heads ({groups}) must divide num_attention_heads ({heads})"
        )
    return groups


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int, default: int | None) -> int:
    if config.get("head_dim") is not None:
        size = positive_int(config, "head_dim")
    elif default is not None:
        size = default
    elif hidden % heads:
        raise InputError(
            f"config.json: num_attention_heads ({heads}) must divide hidden_size ({hidden}), or"
            " head_dim must be given"
        )
    else:
        size = hidden // heads
    if size % 2:
        raise InputError(f"config.json: head_dim must be even for rotary embedding, got {size}")
    return size
