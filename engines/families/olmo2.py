"""OLMo 2: norms behind attention and feed-forward, none before, and one over all heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape
from engines.families.common.tensors import HfTensor, TensorTable

_NORMS_OF_ALL_HEADS = {
    "self_attention.q_layernorm.weight": (HfTensor("self_attn.q_norm.weight", ("queries",)),),
    "self_attention.k_layernorm.weight": (HfTensor("self_attn.k_norm.weight", ("keys",)),),
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    return dense.dense_shape(FAMILY, config, norm_eps=1e-5, max_positions=2048)


FAMILY = Family(
    architecture="Olmo2ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        {
            **dense.output_norms("post_attention_layernorm", "post_feedforward_layernorm"),
            **dense.QKV,
            **_NORMS_OF_ALL_HEADS,
            **dense.ATTENTION_OUTPUT,
            **dense.GATE_AND_UP,
            **dense.DOWN,
        },
    ),
    sglang="sglang.srt.models.olmo2:Olmo2ForCausalLM",
    megatron={"qk_layernorm": True},
    classifiers={"TokenClassification": None},
)
