"""DeepSeek-V3 and R1, and models built like them, such as Moonlight: latent attention and experts.

Queries and keys have an unrotated and a rotated part, of which all heads share the rotated key. A
token passes the shared experts, and those of highest sigmoid and bias in the best groups; the first
layers are dense. Layers for multi-token prediction are not trained. Latents' norms have the model's
`rms_norm_eps`, as in SGLang, vLLM and Megatron-core; transformers takes 1e-6 for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from engines.families.common.family import Family, Latent, ModelShape
from engines.families.common.model_config import (
    Rope,
    Yarn,
    flag,
    kind_of_rope,
    non_negative_int,
    positive,
    positive_int,
    read_rope,
    refuse,
    stated_rope,
)
from engines.families.common.tensors import HfTensor, Parameters, TensorTable
from infra.errors import InputError

_LEFT_OUT: dict[str, Any] = {
    "n_group": 8,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
"""what transformers takes where config.json does not say it"""
_OWN_ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "head_dim")
_WRITTEN = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_REFUSED = {
    "index_topk": "sparse attention of DeepSeek-V3.2",
    # SGLang alone reads these, which are other models'.
    "llama_4_scaling": "a scale of queries by their position",
    "num_hash_layers": "routing by a token's number",
    "swiglu_limit": "a clamp in the experts",
}
_OF_YARN = {
    *("rope_type", "type", "rope_theta", "factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "original_max_position_embeddings"),
}


def _shape(config: Mapping[str, Any]) -> ModelShape:
    config = _LEFT_OUT | dict(config)
    rope = _rope(config)
    head_dim, latent = _latent(config, rope)
    plain = {name: value for name, value in config.items() if name not in _OWN_ROPE}
    if config.get("head_dim", latent.rotated) != latent.rotated:
        raise InputError(
            f"config.json: head_dim {config['head_dim']!r} is not supported: transformers rotates"
            f" so many numbers, and qk_rope_head_dim is {latent.rotated}; leave it out"
        )
    shape = dense.dense_shape(FAMILY, plain, head_dim=head_dim, max_positions=4096)
    _check(config, shape)
    dense_layers = min(non_negative_int(config, "first_k_dense_replace", 3), shape.num_layers)
    mixture = read_mixture(
        config,
        positive_int(config, "n_routed_experts"),
        frozenset(range(dense_layers)),
        # transformers' class always has some of these.
        positive_int(config, "n_shared_experts", 1) * positive_int(config, "moe_intermediate_size"),
    )
    family = replace(
        FAMILY,
        tensors=_table(has_query_latent=latent.query_rank is not None),
        megatron={**FAMILY.megatron, **sigmoid_routing(config, mixture)},
    )
    return replace(
        shape,
        family=family,
        rope=rope,
        latent=latent,
        mixture=mixture,
        num_extra_layers=non_negative_int(config, "num_nextn_predict_layers", 0),
    )


def _latent(config: Mapping[str, Any], rope: Rope) -> tuple[int, Latent]:
    """Numbers of a head's queries and keys, and how they are made."""
    rotated = positive_int(config, "qk_rope_head_dim")
    head_dim = positive_int(config, "qk_nope_head_dim") + rotated
    values = positive_int(config, "v_head_dim")
    if rotated % 2 or values > head_dim:
        raise InputError(
            f"config.json: qk_rope_head_dim ({rotated}) must be even, and v_head_dim ({values}) not"
            f" above qk_nope_head_dim + qk_rope_head_dim ({head_dim})"
        )
    has_rank = config.get("q_lora_rank") is not None
    query_rank = positive_int(config, "q_lora_rank") if has_rank else None
    rank = positive_int(config, "kv_lora_rank")
    sharpness = rope.yarn.sharpness if isinstance(rope.yarn, LatentYarn) else 1.0
    return head_dim, Latent(query_rank, rank, rotated, values, sharpness / math.sqrt(head_dim))


@dataclass(frozen=True, slots=True)
class LatentYarn(Yarn):
    """YaRN that makes attention sharper by its scores, of what is rotated and what is not, and
    leaves cosines and sines as they are."""

    mscale: float = 1.0

    @property
    def scale(self) -> float:
        return 1.0

    @property
    def sharpness(self) -> float:
        """Factor of scores."""
        return (0.1 * self.mscale * math.log(max(self.factor, 1.0)) + 1.0) ** 2


def _rope(config: Mapping[str, Any]) -> Rope:
    stated = stated_rope(config)
    if kind_of_rope(stated) != "yarn":
        return read_rope(config, scalings=("yarn",))
    unknown = sorted(name for name in stated if name not in _OF_YARN and stated[name] is not None)
    if unknown:
        raise InputError(
            f"config.json: rope type 'yarn' with {', '.join(unknown)} is not supported; allowed are"
            f" {', '.join(sorted(_OF_YARN))}"
        )
    for name in ("factor", "mscale", "mscale_all_dim", "original_max_position_embeddings"):
        if stated.get(name) is None:
            raise InputError(f"config.json: rope type 'yarn' lacks {name}, so it is not supported")
    mscale = positive(stated, "mscale", 1.0)
    if mscale != positive(stated, "mscale_all_dim", 1.0):
        raise InputError(
            f"config.json: mscale ({mscale}) and mscale_all_dim ({stated['mscale_all_dim']}) of"
            " rope type 'yarn' must be equal: rotations that also scale are not supported"
        )
    yarn = LatentYarn(
        positive(stated, "factor", 1.0),
        positive_int(stated, "original_max_position_embeddings"),
        positive(stated, "beta_fast", 32.0),
        positive(stated, "beta_slow", 1.0),
        mscale,
    )
    return Rope(positive({**config, **stated}, "rope_theta", 10000.0), yarn=yarn)


def _check(config: Mapping[str, Any], shape: ModelShape) -> None:
    """Raise InputError for what transformers, Megatron-core and SGLang would not all compute
    alike."""
    refuse(config, _REFUSED)
    if not flag(config, "rope_interleave"):
        raise InputError("config.json: rope_interleave false is not supported, only true")
    if shape.kv_groups != shape.heads:
        raise InputError(
            f"config.json: num_key_value_heads ({shape.kv_groups}) must be num_attention_heads"
            f" ({shape.heads}): every head has keys and values of its own"
        )
    for name, needed in _WRITTEN.items():
        if config.get(name) != needed:
            raise InputError(
                f"config.json: {name} is {config.get(name)!r}, and only {needed!r} is supported;"
                " SGLang has no default, so write it if transformers has left it out"
            )


_KEYS_AND_VALUES: Parameters = {
    "self_attention.linear_kv_down_proj.weight": (
        HfTensor("self_attn.kv_a_proj_with_mqa.weight", ("latent_and_rotated_key",), "hidden"),
    ),
    "self_attention.kv_layernorm.weight": (
        HfTensor("self_attn.kv_a_layernorm.weight", ("latent",)),
    ),
    "self_attention.linear_kv_up_proj.weight": (
        HfTensor("self_attn.kv_b_proj.weight", ("keys_and_values",), "latent"),
    ),
    "self_attention.linear_proj.weight": (
        HfTensor("self_attn.o_proj.weight", ("hidden",), "values"),
    ),
}
_LATENT_QUERIES: Parameters = {
    "self_attention.linear_q_down_proj.weight": (
        HfTensor("self_attn.q_a_proj.weight", ("query_latent",), "hidden"),
    ),
    "self_attention.q_layernorm.weight": (
        HfTensor("self_attn.q_a_layernorm.weight", ("query_latent",)),
    ),
    "self_attention.linear_q_up_proj.weight": (
        HfTensor("self_attn.q_b_proj.weight", ("queries",), "query_latent"),
    ),
}
_QUERIES: Parameters = {
    "self_attention.linear_q_proj.weight": (
        HfTensor("self_attn.q_proj.weight", ("queries",), "hidden"),
    ),
}


def _table(*, has_query_latent: bool) -> TensorTable:
    attention = {
        **dense.NORMS,
        **(_LATENT_QUERIES if has_query_latent else _QUERIES),
        **_KEYS_AND_VALUES,
    }
    return TensorTable(
        dense.TOP,
        {**attention, **dense.GATE_AND_UP, **dense.DOWN},
        expert_layer={**attention, **ROUTER, **EXPERT_BIAS, **SHARED_EXPERTS},
        expert=EXPERT,
    )


FAMILY = Family(
    architecture="DeepseekV3ForCausalLM",
    read_shape=_shape,
    tensors=_table(has_query_latent=True),
    sglang="sglang.srt.models.deepseek_v2:DeepseekV3ForCausalLM",
    megatron={"rotary_interleaved": True},
)
