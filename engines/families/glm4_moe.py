"""GLM-4.5, 4.6 and 4.7: mixtures of experts behind dense first layers.

Half of each head is rotated. A token passes the shared experts and those of highest sigmoid and
bias; their weights are the sigmoids alone. Layers for multi-token prediction are not trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.experts import (
    EXPERT,
    EXPERT_BIAS,
    ROUTER,
    SHARED_EXPERTS,
    read_mixture,
    sigmoid_routing,
)
from engines.families.common.family import Family, ModelShape
from engines.families.common.model_config import flag, non_negative_int, positive_int
from engines.families.common.tensors import HfTensor, TensorTable

_ROTATED = 0.5
_MOST_POSITIONS = 131072


def _shape(config: Mapping[str, Any]) -> ModelShape:
    has_bias, has_norms = flag(config, "attention_bias"), flag(config, "use_qk_norm")
    shape = dense.dense_shape(
        FAMILY,
        config,
        norm_eps=1e-5,
        max_positions=_MOST_POSITIONS,
        rotary_share=_ROTATED,
        allowed=("attention_bias",),
    )
    layers, dense_layers = shape.num_layers, non_negative_int(config, "first_k_dense_replace", 1)
    mixture = read_mixture(
        config,
        positive_int(config, "n_routed_experts"),
        frozenset(range(min(dense_layers, layers))),
        non_negative_int(config, "n_shared_experts", 1)
        * positive_int(config, "moe_intermediate_size"),
    )
    family = replace(
        FAMILY,
        tensors=_table(has_bias, has_norms, has_shared=mixture.shared_ffn > 0),
        megatron={
            "add_qkv_bias": has_bias,
            "qk_layernorm": has_norms,
            **sigmoid_routing(config, mixture),
        },
    )
    extra = non_negative_int(config, "num_nextn_predict_layers", 0)
    return replace(shape, family=family, mixture=mixture, num_extra_layers=extra)


def _table(has_bias: bool, has_norms: bool, has_shared: bool) -> TensorTable:
    nothing: dict[str, tuple[HfTensor, ...]] = {}
    attention = (
        dense.NORMS
        | dense.QKV
        | (dense.QKV_BIAS if has_bias else nothing)
        | (dense.HEAD_NORMS if has_norms else nothing)
        | dense.ATTENTION_OUTPUT
    )
    routed = ROUTER | EXPERT_BIAS | (SHARED_EXPERTS if has_shared else nothing)
    return TensorTable(
        dense.TOP,
        attention | dense.GATE_AND_UP | dense.DOWN,
        expert_layer=attention | routed,
        expert=EXPERT,
    )


FAMILY = Family(
    architecture="Glm4MoeForCausalLM",
    read_shape=_shape,
    tensors=_table(has_bias=True, has_norms=True, has_shared=True),
    sglang="sglang.srt.models.glm4_moe:Glm4MoeForCausalLM",
    classifiers={"SequenceClassification": None, "TokenClassification": None},
)
