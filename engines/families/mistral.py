"""Mistral's dense models: Llama's layer. Those with a sliding window are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import TensorTable

_WINDOW = 4096
"""positions of the window where config.json does not speak of one; null: there is none"""


def _shape(config: Mapping[str, Any]) -> ModelShape:
    shape = dense.dense_shape(FAMILY, config, max_positions=131072)
    window = config.get("sliding_window", _WINDOW)
    return dense.refuse_window(shape, window, without="Mistral-7B-v0.3")


FAMILY = Family(
    architecture="MistralForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        dense.NORMS | dense.QKV | dense.ATTENTION_OUTPUT | dense.GATE_AND_UP | dense.DOWN,
    ),
    sglang="sglang.srt.models.mistral:MistralForCausalLM",
    sglang_dense="sglang.srt.models.llama:LlamaModel",
)
