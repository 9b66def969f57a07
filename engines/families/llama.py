"""Llama 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import TensorTable


def _shape(config: Mapping[str, Any]) -> ModelShape:
    return dense.dense_shape(FAMILY, config, max_positions=2048)


FAMILY = Family(
    architecture="LlamaForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        dense.NORMS | dense.QKV | dense.ATTENTION_OUTPUT | dense.GATE_AND_UP | dense.DOWN,
    ),
    sglang="sglang.srt.models.llama:LlamaForCausalLM",
    sglang_dense="sglang.srt.models.llama:LlamaModel",
)
