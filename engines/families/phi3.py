"""Phi-3 and Phi-4: Llama's layer, with two pairs of matrices stored fused.

Some have LongRoPE: they are trained, and served, within the positions that they had before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.model_config import positive
from engines.families.common.tensors import HfTensor, TensorTable
from infra.errors import InputError

_QKV = {
    "self_attention.linear_qkv.weight": (
        HfTensor("self_attn.qkv_proj.weight", ("queries", "keys", "keys"), "hidden"),
    )
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    # To transformers, with which servers read a config, `yarn` is `longrope` here.
    shape = dense.dense_shape(
        FAMILY, config, norm_eps=1e-5, max_positions=4096, rotary_share=1.0, scalings=("longrope",)
    )
    if shape.rope.share != positive(config, "partial_rotary_factor", 1.0):
        raise InputError(
            "config.json: partial_rotary_factor stands in rope_parameters alone, where SGLang does"
            " not read it for this family; write it beside hidden_size as well"
        )
    if (long := shape.rope.long) is not None:
        shape = replace(shape, max_positions=long.original_max_positions)
        if len(long.factors) != (speeds := int(shape.head_dim * shape.rope.share) // 2):
            raise InputError(
                f"config.json: short_factor has {len(long.factors)} numbers, and heads of"
                f" {shape.head_dim} numbers {speeds} rotary speeds"
            )
    return dense.refuse_window(shape, config.get("sliding_window"), without="Phi-4")


FAMILY = Family(
    architecture="Phi3ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        dense.NORMS | _QKV | dense.ATTENTION_OUTPUT | dense.FUSED_GATE_AND_UP | dense.DOWN,
    ),
    sglang="sglang.srt.models.llama:Phi3ForCausalLM",
    sglang_dense="sglang.srt.models.llama:LlamaModel",
)
