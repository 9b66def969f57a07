"""Phi-3 and Phi-4: Llama's layer, with two pairs of matrices stored fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import HfTensor, TensorTable

_QKV = {
    "self_attention.linear_qkv.weight": (
        HfTensor("self_attn.qkv_proj.weight", ("queries", "keys", "keys"), "hidden"),
    )
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    # To transformers, with which servers read a config, `yarn` is `longrope` here.
    shape = dense.dense_shape(FAMILY, config, norm_eps=1e-5, max_positions=4096, scalings=())
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
