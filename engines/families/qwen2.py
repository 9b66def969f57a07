"""Qwen2 and Qwen2.5: Llama's layer with a bias on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import TensorTable


def _shape(config: Mapping[str, Any]) -> ModelShape:
    return dense.dense_shape(FAMILY, config)


FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        dense.NORMS
        | dense.QKV
        | dense.QKV_BIAS
        | dense.ATTENTION_OUTPUT
        | dense.GATE_AND_UP
        | dense.DOWN,
    ),
    sglang="sglang.srt.models.qwen2:Qwen2ForCausalLM",
    sglang_dense="sglang.srt.models.qwen2:Qwen2Model",
    megatron={"add_qkv_bias": True},
)
