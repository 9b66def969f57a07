"""gpt-oss: every other layer sees a window of tokens, heads may look at nothing, and each token
passes a few experts of a clamped feed-forward; products have biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.experts import read_mixture
from engines.families.common.family import Family, ModelShape, Window
from engines.families.common.model_config import (
    Rope,
    all_but_every,
    flag,
    only,
    positive,
    positive_int,
    read_rope,
    stated_layers,
    stated_rope,
)
from engines.families.common.tensors import ROUTED, HfTensor, TensorTable

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
# SGLang reads the second name of the same number.
_ONLY = {"attention_bias": True, "swiglu_alpha": 1.702, "hidden_act_alpha": 1.702}
_ROPE_LEFT_OUT = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""what transformers takes where config.json has no settings of rope but its base"""
_MORE_ATTENTION = {
    "self_attention.linear_proj.bias": (HfTensor("self_attn.o_proj.bias", ("hidden",)),),
    "self_attention.core_attention.sinks": (HfTensor("self_attn.sinks", ("heads",)),),
}
_ROUTER = {
    "mlp.router.weight": (HfTensor("mlp.router.weight", ROUTED, "hidden"),),
    "mlp.router.bias": (HfTensor("mlp.router.bias", ROUTED),),
}
_EXPERTS = {
    f"mlp.experts.{name}": (HfTensor(f"mlp.experts.{name}", rows, columns, is_stacked=True),)
    for name, rows, columns in (
        ("gate_up_proj", ("hidden",), "gate_and_up"),
        ("gate_up_proj_bias", ("gate_and_up",), None),
        ("down_proj", ("expert_ffn",), "hidden"),
        ("down_proj_bias", ("hidden",), None),
    )
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    only(config, _ONLY)
    others = ("attention_bias", "layer_types", "rope_parameters", "rope_scaling")
    plain = {key: value for key, value in config.items() if key not in others}
    shape = dense.dense_shape(FAMILY, plain, head_dim=64, norm_eps=1e-5, max_positions=131072)
    rope = _rope(config)
    experts = {**config, "moe_intermediate_size": shape.ffn}
    mixture = read_mixture(experts, positive_int(config, "num_local_experts"), is_normed=True)
    clamp = positive(config, "swiglu_limit", 7.0)
    window = Window(
        positive_int(config, "sliding_window", 128), _windowed(config, shape.num_layers), rope
    )
    family = replace(FAMILY, megatron={**FAMILY.megatron, "activation_func_clamp_value": clamp})
    return replace(shape, family=family, rope=rope, mixture=mixture, window=window)


def _windowed(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    stated = stated_layers(config, layers, _WINDOWED, _WHOLE)
    return all_but_every(2, layers) if stated is None else stated


def _rope(config: Mapping[str, Any]) -> Rope:
    is_said = config.get("rope_parameters") is not None or config.get("rope_scaling")
    stated = stated_rope(config) if is_said else _ROPE_LEFT_OUT
    known = {key: value for key, value in stated.items() if key != "truncate"}
    theta = positive({**config, **stated}, "rope_theta", 150000.0)
    rope = read_rope({"rope_theta": theta, "rope_parameters": known}, scalings=("yarn",))
    if rope.yarn is None:
        return rope
    is_rounded = flag({"truncate": True, **stated}, "truncate")
    return replace(rope, yarn=replace(rope.yarn, is_rounded=is_rounded))


FAMILY = Family(
    architecture="GptOssForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        layer={},
        expert_layer={
            **dense.NORMS,
            **dense.QKV,
            **dense.QKV_BIAS,
            **dense.ATTENTION_OUTPUT,
            **_MORE_ATTENTION,
            **_ROUTER,
            **_EXPERTS,
        },
    ),
    sglang="engines.sglang.models.gptoss:GptOssForCausalLM",
    megatron={"add_bias_linear": True, "glu_linear_offset": 1.0},
    activation="quick_gelu",
)
