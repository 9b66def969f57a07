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


# A layer of `SIZES`: queries 32 x 32, keys and values 2 x 16 x 32, output 32 x 32, feed-forward
# 3 x 32 x 48: 7680 weights; four layers 30720, three tokens 92160. Logits 2 x 32 x 96 = 6144.
# Attention: 4 layers x 4 heads x 8 wide x 3 squared = 1152.
_LLAMA = 6 * (92160 + 6144 + 1152)

EXAMPLES = {
    "llama": Example(_LLAMA),
    "phi3": Example(_LLAMA),
    "qwen2": Example(_LLAMA),
    # Heads of 16: queries 64 x 32, keys and values 2 x 32 x 32, output 32 x 64: 10752 weights a
    # layer with the feed-forward; attention twice as wide.
    "qwen3": Example(6 * (3 * 4 * 10752 + 6144 + 2 * 1152), {"head_dim": 16}),
}


def hf_config(family: str, **changes: Any) -> Any:
    """transformers' config of the example; `changes` set fields."""
    from transformers import AutoConfig

    fields = {"pad_token_id": None, **SIZES, **EXAMPLES[family].config, **changes}
    return AutoConfig.for_model(family, **fields)
