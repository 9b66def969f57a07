"""Phi-3 and Phi-4: Llama's layer, with two pairs of matrices stored fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.config import positive_int
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import HfTensor, TensorTable
from infra.errors import InputError

_FUSED = {
    "self_attention.linear_qkv.weight": (
        HfTensor("self_attn.qkv_proj.weight", ("queries", "keys", "keys"), "hidden"),
    ),
    "mlp.linear_fc1.weight": (HfTensor("mlp.gate_up_proj.weight", ("ffn", "ffn"), "hidden"),),
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    shape = dense.dense_shape(FAMILY, config, norm_eps=1e-5, max_positions=4096)
    if config.get("sliding_window") is not None:
        window = positive_int(config, "sliding_window")
        if window < shape.max_positions:
            raise InputError(
                f"config.json: sliding_window is {window}, below max_position_embeddings"
                f" ({shape.max_positions}): sliding-window attention is not supported; use a model"
                " without it, such as Phi-4"
            )
    return shape


FAMILY = Family(
    architecture="Phi3ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(dense.TOP, dense.NORMS | _FUSED | dense.ATTENTION_OUTPUT | dense.DOWN),
    sglang="sglang.srt.models.llama:Phi3ForCausalLM",
    sglang_dense="sglang.srt.models.llama:LlamaModel",
)
