"""Qwen3.5 without its eyes: gated delta nets in most layers, attention in every fourth.

Attention has a gate on its output, rotates a quarter of each head and norms queries and keys. The
weights of all norms are stored less 1, but for those in the delta nets. Layers for multi-token
prediction are not trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.family import GATED_QUERIES, Delta, Family, ModelShape
from engines.families.common.model_config import (
    all_but_every,
    only,
    positive,
    positive_int,
    stated_layers,
)
from engines.families.common.tensors import HfTensor, Parameters, TensorTable
from infra.errors import InputError

_DELTA, _WHOLE = "linear_attention", "full_attention"
_ROTATED = 0.25


def _shape(config: Mapping[str, Any]) -> ModelShape:
    only(config, {"attn_output_gate": True})
    if config.get("output_gate_type") not in (None, "silu", "swish"):
        raise InputError(
            f"config.json: output_gate_type {config['output_gate_type']!r} is not supported, only"
            " 'silu' or its other name 'swish': SGLang alone reads it"
        )
    plain = {key: value for key, value in config.items() if key != "layer_types"}  # read below
    # Sections of positions in a picture do nothing to a text: its three kinds of positions are one.
    shape = dense.dense_shape(FAMILY, plain, head_dim=256, rotary_share=_ROTATED, scalings=())
    if shape.rope.share != positive(config, "partial_rotary_factor", _ROTATED):
        raise InputError(
            f"config.json: partial_rotary_factor is {shape.rope.share:g} in rope_parameters, where"
            " SGLang does not read it for this family; write the same beside hidden_size"
        )
    return replace(shape, delta=_delta(config, shape.num_layers))


def _delta(config: Mapping[str, Any], layers: int) -> Delta:
    key_heads = positive_int(config, "linear_num_key_heads", 16)
    value_heads = positive_int(config, "linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise InputError(
            f"config.json: linear_num_key_heads ({key_heads}) must divide linear_num_value_heads"
            f" ({value_heads})"
        )
    return Delta(
        _delta_layers(config, layers),
        key_heads,
        value_heads,
        positive_int(config, "linear_key_head_dim", 128),
        positive_int(config, "linear_value_head_dim", 128),
        positive_int(config, "linear_conv_kernel_dim", 4),
    )


def _delta_layers(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    stated = stated_layers(config, layers, _DELTA, _WHOLE)
    first = next((n for n in range(layers) if stated is not None and n not in stated), 3)
    found = all_but_every(positive_int(config, "full_attention_interval", first + 1), layers)
    if layers in (len(found), len(stated or ())):
        raise InputError(
            f"config.json: layers without a {_WHOLE} are not supported: transformers runs none"
        )
    if stated not in (None, found):
        raise InputError(
            "config.json: layer_types are supported where they are those of"
            f" full_attention_interval, a {_WHOLE} at the end of so many layers: SGLang reads the"
            " interval alone"
        )
    return found


_ATTENTION: Parameters = {
    "self_attention.linear_qkv.weight": (
        HfTensor("self_attn.q_proj.weight", (GATED_QUERIES,), "hidden"),
        HfTensor("self_attn.k_proj.weight", ("keys",), "hidden"),
        HfTensor("self_attn.v_proj.weight", ("keys",), "hidden"),
    ),
    **dense.HEAD_NORMS,
    **dense.ATTENTION_OUTPUT,
}
_MIXED = ("delta_keys", "delta_keys", "delta_values")
_DELTA_NET: Parameters = {
    "self_attention.in_proj.weight": (
        HfTensor("linear_attn.in_proj_qkv.weight", _MIXED, "hidden"),
        HfTensor("linear_attn.in_proj_z.weight", ("delta_values",), "hidden"),
        HfTensor("linear_attn.in_proj_b.weight", ("delta_heads",), "hidden"),
        HfTensor("linear_attn.in_proj_a.weight", ("delta_heads",), "hidden"),
    ),
    "self_attention.conv1d.weight": (
        HfTensor("linear_attn.conv1d.weight", _MIXED, "kernel", is_convolution=True),
    ),
    "self_attention.A_log": (HfTensor("linear_attn.A_log", ("delta_heads",)),),
    "self_attention.dt_bias": (HfTensor("linear_attn.dt_bias", ("delta_heads",)),),
    "self_attention.out_norm.weight": (HfTensor("linear_attn.norm.weight", ("delta_value",)),),
    "self_attention.out_proj.weight": (
        HfTensor("linear_attn.out_proj.weight", ("hidden",), "delta_values"),
    ),
}
_FEED_FORWARD: Parameters = {**dense.GATE_AND_UP, **dense.DOWN}

FAMILY = Family(
    architecture="Qwen3_5ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        {**dense.NORMS, **_ATTENTION, **_FEED_FORWARD},
        delta_layer={**dense.NORMS, **_DELTA_NET, **_FEED_FORWARD},
    ),
    sglang="sglang.srt.models.qwen3_5_text:Qwen3_5ForCausalLM",
    no_cpu_server="its delta nets call kernels of sgl-kernel, which has no package for CPUs",
    served_keys=("full_attention_interval",),
    megatron={
        "qk_layernorm": True,
        "layernorm_zero_centered_gamma": True,
        "attention_output_gate": True,
    },
    kept=("mtp.",),
    classifiers={
        "SequenceClassification": "Qwen3_5TextForSequenceClassification",
        "TokenClassification": None,
    },
)
