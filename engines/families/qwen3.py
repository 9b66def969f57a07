"""Qwen3: Llama's layer with a norm on each query and key head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import TensorTable


def _shape(config: Mapping[str, Any]) -> ModelShape:
    return dense.dense_shape(FAMILY, config, head_dim=128)


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        dense.NORMS
        | dense.QKV
        | dense.HEAD_NORMS
        | dense.ATTENTION_OUTPUT
        | dense.GATE_AND_UP
        | dense.DOWN,
    ),
    sglang="sglang.srt.models.qwen3:Qwen3ForCausalLM",
    sglang_dense="sglang.srt.models.qwen3:Qwen3Model",
    megatron={"qk_layernorm": True},
)
