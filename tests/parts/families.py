"""A tiny model of every supported family, for the tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@dataclass(frozen=True)
class Example:
    """What a family's HF config needs beside `SIZES`, and what it must come to."""

    flops: int
    """worked out by hand: forward and backward of three tokens, with logits of two of them"""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    experts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of a mixture of experts, also for tiny models of other sizes"""
    windows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of layers with a sliding window, also for tiny models of other sizes"""
    delta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """fields of gated delta nets, also for tiny models of other sizes"""


# A layer of `SIZES`: queries 32 x 32, keys and values 2 x 16 x 32, output 32 x 32, feed-forward
# 3 x 32 x 48: 7680 weights; four layers 30720, three tokens 92160. Logits 2 x 32 x 96 = 6144.
# Attention: 4 layers x 4 heads x 8 wide x 3 squared = 1152.
_LLAMA = 6 * (92160 + 6144 + 1152)
# With heads of 16: queries 64 x 32, keys and values 2 x 32 x 32, output 32 x 64: 10752 weights a
# layer with the feed-forward; attention twice as wide.
_WIDE = 6 * (3 * 4 * 10752 + 6144 + 2 * 1152)

EXAMPLES = {
    "llama": Example(_LLAMA),
    "mistral": Example(_LLAMA),
    "olmo2": Example(_LLAMA),
    "phi3": Example(_LLAMA),
    "qwen2": Example(_LLAMA),
    "qwen3": Example(_WIDE, {"head_dim": 16}),
    "glm4": Example(_WIDE, {"head_dim": 16}),
    "gemma3_text": Example(
        _WIDE,
        {"query_pre_attn_scalar": 24},
        windows={
            "head_dim": 16,
            "sliding_window": 9,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 2000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
            "tie_word_embeddings": True,
        },
    ),
    # Three delta nets: queries, keys and values of 2 x 6, 2 x 6 and 4 x 10 numbers, a gate of 40
    # and twice 4 are 112 x 32, the convolution 64 x 4, the output 32 x 40: with the feed-forward
    # 9728.
    # A token takes three times the states' 4 x 6 x 10. The fourth layer has queries and gates of
    # 128 x 32, keys and values 2 x 32 x 32, outputs 32 x 64, and the feed-forward: 12800.
    "qwen3_5_text": Example(
        6 * (3 * (3 * 9728 + 12800) + 6144 + 4 * 16 * 9 + 3 * 3 * 3 * 240),
        {"head_dim": 16},
        delta={
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 6,
            "linear_value_head_dim": 10,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [1, 1, 0],
            },
        },
    ),
    # Qwen3's attention has 6144 weights a layer. A token passes the router, 4 x 32, and two experts
    # of 3 x 32 x 24: 4736.
    "qwen3_moe": Example(
        6 * (3 * 4 * (6144 + 4736) + 6144 + 2 * 1152),
        {"head_dim": 16},
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
    ),
    # Attention as Qwen3's. A token passes the router, 4 x 32, and two experts of 3 x 32 x 24. The
    # window is longer than three tokens.
    "gpt_oss": Example(
        6 * (3 * 4 * (6144 + 4736) + 6144 + 2 * 1152),
        {"head_dim": 16},
        {
            "intermediate_size": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": False,
            "sliding_window": 9,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    # Heads of 16 and a bias, which is no matrix. The first layer's feed-forward is dense, 4608; the
    # three others have one more expert, for all: 7040.
    "glm4_moe": Example(
        6 * (3 * (4 * 6144 + 4608 + 3 * 7040) + 6144 + 2 * 1152),
        {"head_dim": 16, "num_nextn_predict_layers": 0, "use_qk_norm": True},
        {
            "attention_bias": True,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
            "tie_word_embeddings": False,
        },
    ),
    # Heads of 12 numbers, 4 of them rotated, values of 8; every layer makes queries of 24 x 32 and
    # 48 x 24, keys and values of (20 + 4) x 32 and 4 x 16 x 20, outputs of 32 x 32. Attention is
    # (12 + 8) / 2 wide a head. A token passes the router, 8 x 32, two experts of 3 x 32 x 24 and
    # one more for all: 7168.
    "deepseek_v3": Example(
        6 * (3 * (4 * (768 + 1152 + 768 + 1280 + 1024) + 4608 + 3 * 7168) + 6144 + 4 * 4 * 10 * 9),
        {},
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 20,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
}


def all_fields(family: str) -> dict[str, Any]:
    """What the family's HF config needs beside `SIZES`."""
    example = EXAMPLES[family]
    return {**example.config, **example.experts, **example.windows, **example.delta}


def hf_config(family: str, **changes: Any) -> Any:
    """transformers' config of the example; `changes` set fields."""
    from transformers import AutoConfig

    fields = {"pad_token_id": None, **SIZES, **all_fields(family), **changes}
    return AutoConfig.for_model(family, **fields)
