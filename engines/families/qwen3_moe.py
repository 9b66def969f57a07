"""Qwen3's mixtures of experts: Qwen3's attention, and in every layer a softmax over experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.experts import EXPERT, ROUTER, read_mixture
from engines.families.common.family import Family, ModelShape
from engines.families.common.model_config import flag, positive_int, refuse
from engines.families.common.tensors import TensorTable
from infra.errors import InputError

_ATTENTION = dense.NORMS | dense.QKV | dense.HEAD_NORMS | dense.ATTENTION_OUTPUT


def _shape(config: Mapping[str, Any]) -> ModelShape:
    # transformers writes the number under either name.
    key = "num_local_experts" if "num_local_experts" in config else "num_experts"
    shape = dense.dense_shape(FAMILY, config)
    # SGLang's class makes experts in every layer, and leaves those that it is sent none for as the
    # memory was.
    refuse(config, {"mlp_only_layers": "a layer without experts"})
    if positive_int(config, "decoder_sparse_step", 1) > 1:
        raise InputError(
            "config.json: decoder_sparse_step must be 1: a layer without experts is not supported"
        )
    is_normed = flag(config, "norm_topk_prob")
    mixture = read_mixture(config, positive_int(config, key), is_normed=is_normed)
    # The softmax is of all experts' logits, or of those that the token is sent to.
    routing = {"moe_router_pre_softmax": not is_normed}
    family = replace(FAMILY, megatron={**FAMILY.megatron, **routing})
    return replace(shape, family=family, mixture=mixture)


FAMILY = Family(
    architecture="Qwen3MoeForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        layer={},
        expert_layer=_ATTENTION | ROUTER,
        expert=EXPERT,
    ),
    sglang="sglang.srt.models.qwen3_moe:Qwen3MoeForCausalLM",
    megatron={"qk_layernorm": True},
)
