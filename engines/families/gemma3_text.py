"""Gemma 3 without its eyes: most layers see a window of tokens, every sixth all of them.

Embeddings are scaled, norms stand before and after attention and feed-forward, and their weights
are stored less 1. Layers with a window have a rotary embedding of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engines.families.common import dense
from engines.families.common.family import Family, ModelShape, Window
from engines.families.common.model_config import (
    Rope,
    all_but_every,
    positive,
    positive_int,
    read_rope,
    refuse,
    stated_layers,
)
from engines.families.common.tensors import HfTensor, TensorTable
from infra.errors import InputError

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
_ACTIVATION = "gelu_pytorch_tanh"
_REFUSED = {
    "attn_logit_softcapping": "a soft cap of attention scores",
    "final_logit_softcapping": "a soft cap of logits",
    "use_bidirectional_attention": "attention to later tokens",
}
_NORMS = {
    "input_layernorm.weight": (HfTensor("input_layernorm.weight", ("hidden",)),),
    "pre_mlp_layernorm.weight": (HfTensor("pre_feedforward_layernorm.weight", ("hidden",)),),
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    refuse(config, _REFUSED)
    for key in ("hidden_act", "hidden_activation"):
        if config.get(key, _ACTIVATION) != _ACTIVATION:
            raise InputError(
                f"config.json: {key} {config[key]!r} is not supported, only {_ACTIVATION!r}"
            )
    if config.get("tie_word_embeddings", True) is not True:
        raise InputError(
            "config.json: tie_word_embeddings must be true: an output layer of its own is not"
            " supported, as SGLang's class would leave it out"
        )
    # Read below: what other families have otherwise.
    others = ("hidden_act", "layer_types", "rope_parameters", "rope_scaling")
    plain = {key: value for key, value in config.items() if key not in others}
    shape = dense.dense_shape(FAMILY, plain, head_dim=256, max_positions=131072)
    whole, windowed = _ropes(config)
    size = positive_int(config, "sliding_window", 4096)
    if size == 1:
        raise InputError("config.json: sliding_window 1 is not supported: SGLang takes it for none")
    window = Window(size, _windowed_layers(config, shape.num_layers), windowed)
    scale = positive(config, "query_pre_attn_scalar", 256.0) ** -0.5
    return replace(
        shape,
        family=replace(FAMILY, megatron={**FAMILY.megatron, "softmax_scale": scale}),
        rope=whole,
        window=window,
        is_tied=True,
        embedding_scale=shape.hidden**0.5,
    )


def _windowed_layers(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    stated = stated_layers(config, layers, _WINDOWED, _WHOLE)
    if stated is not None:
        return stated
    return all_but_every(positive_int(config, "sliding_window_pattern", 6), layers)


def _ropes(config: Mapping[str, Any]) -> tuple[Rope, Rope]:
    """Read the ropes of layers that see all tokens, and of those with a window: `rope_parameters`
    by kind of layer (transformers 5), or `rope_theta`, `rope_scaling` and `rope_local_base_freq`.
    """
    stated: Any = config.get("rope_parameters") or {}
    if not isinstance(stated, dict) or not {*stated} <= {_WINDOWED, _WHOLE}:
        raise InputError(
            f"config.json: rope_parameters without one object each for {_WHOLE} and {_WINDOWED} are"
            " not supported"
        )
    scaling: Any = config.get("rope_scaling")
    if isinstance(scaling, dict) and "type" in scaling and "rope_type" not in scaling:
        raise InputError(
            "config.json: rope_scaling.type is not supported: transformers would take the rope type"
            " 'default'; write it as rope_scaling.rope_type"
        )
    theta = positive(config, "rope_theta", 1_000_000.0)
    local = positive(config, "rope_local_base_freq", 10_000.0)
    whole = {"rope_scaling": scaling, "rope_parameters": stated.get(_WHOLE)}
    windowed = {"rope_parameters": stated.get(_WINDOWED)}
    return (
        read_rope({"rope_theta": theta, **whole}, scalings=("linear",)),
        # SGLang knows no scaling of these.
        read_rope({"rope_theta": local, **windowed}, scalings=()),
    )


FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    read_shape=_shape,
    tensors=TensorTable(
        dense.TOP,
        {
            **_NORMS,
            **dense.output_norms("post_attention_layernorm", "post_feedforward_layernorm"),
            **dense.QKV,
            **dense.HEAD_NORMS,
            **dense.ATTENTION_OUTPUT,
            **dense.GATE_AND_UP,
            **dense.DOWN,
        },
    ),
    sglang="engines.sglang.models.gemma3:Gemma3ForCausalLM",
    megatron={"qk_layernorm": True, "layernorm_zero_centered_gamma": True},
    activation=_ACTIVATION,
    classifiers={
        "SequenceClassification": "Gemma3TextForSequenceClassification",
        "TokenClassification": None,
    },
)
