"""GLM-4 of April 2025: half of each head rotated, and a norm before and after either part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.model_config import flag
from engines.families.common.tensors import Parameters, TensorTable

_ROTATED = 0.5


def _shape(config: Mapping[str, Any]) -> ModelShape:
    shape = dense.dense_shape(
        FAMILY,
        config,
        head_dim=128,
        norm_eps=1.5625e-7,
        max_positions=131072,
        rotary_share=_ROTATED,
        allowed=("attention_bias",),
    )
    if flag({"attention_bias": True, **config}, "attention_bias"):
        return shape
    megatron = {**FAMILY.megatron, "add_qkv_bias": False}
    return replace(shape, family=replace(FAMILY, tensors=_table({}), megatron=megatron))


def _table(bias: Parameters) -> TensorTable:
    layer = {
        **dense.NORMS,
        **dense.output_norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        **dense.QKV,
        **bias,
        **dense.ATTENTION_OUTPUT,
        **dense.FUSED_GATE_AND_UP,
        **dense.DOWN,
    }
    return TensorTable(dense.TOP, layer)


FAMILY = Family(
    architecture="Glm4ForCausalLM",
    read_shape=_shape,
    tensors=_table(dense.QKV_BIAS),
    sglang="sglang.srt.models.glm4:Glm4ForCausalLM",
    megatron={"add_qkv_bias": True, "rotary_interleaved": True},
)
