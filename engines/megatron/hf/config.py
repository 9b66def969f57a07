"""The part of an HF folder's config.json that training needs. Pure Python, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError

FAMILIES = ("qwen2", "qwen3", "llama")
"""values of `model_type`; Qwen2.5 is a qwen2"""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: its base, and Llama-3's frequency scaling where `factor` is not 1."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """`head_dim / 2` rotation speeds in radians a position, fastest first."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        return plain if self.factor == 1.0 else [self._scaled(speed) for speed in plain]

    def _scaled(self, speed: float) -> float:
        """Slow rotations are slowed by `factor`, fast ones kept, those between interpolated."""
        turns = self.original_max_positions * speed / (2 * math.pi)
        if turns < self.low_freq_factor:
            return speed / self.factor
        if turns > self.high_freq_factor:
            return speed
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * speed / self.factor + keep * speed


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The dense decoder that a config describes."""

    family: str
    num_layers: int
    hidden: int
    heads: int
    kv_groups: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    rope: Rope
    max_positions: int
    is_tied: bool
    has_qkv_bias: bool
    has_qk_norm: bool
    has_value_head: bool = False
    """one number a token in place of logits: a critic"""

    @property
    def num_matmul_params(self) -> int:
        """Weights of a layer stack's matrices, embedding and output layer left out."""
        qkv = self.hidden * self.head_dim * (self.heads + 2 * self.kv_groups)
        out = self.heads * self.head_dim * self.hidden
        return self.num_layers * (qkv + out + 3 * self.hidden * self.ffn)


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; raises InputError if it is missing or unreadable."""
    try:
        return parse_config((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder} is not an HF model folder: it has no config.json") from None
    except InputError as error:
        raise InputError(f"{folder}/{error}") from None


def parse_config(data: bytes) -> dict[str, Any]:
    """The content of a config.json. Raises InputError."""
    try:
        config = json.loads(data)
    except ValueError as error:  # also bytes that are not UTF-8
        raise InputError(f"config.json: is not valid JSON: {error}; copy the file again") from error
    if not isinstance(config, dict):
        raise InputError("config.json: must hold a JSON object; copy the file again")
    return config


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config; raises InputError for a family or feature that is not supported."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(
            f"config.json: model_type {family!r} is not supported; supported families:"
            f" {', '.join(FAMILIES)}"
        )
    _refuse_unsupported(config)
    heads = _positive_int(config, "num_attention_heads")
    hidden = _positive_int(config, "hidden_size")
    return ModelShape(
        family=family,
        num_layers=_positive_int(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_groups=_kv_groups(config, heads),
        head_dim=_head_dim(config, family, hidden, heads),
        ffn=_positive_int(config, "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        norm_eps=_positive(config, "rms_norm_eps", 1e-6),
        rope=_rope(config),
        max_positions=_positive_int(config, "max_position_embeddings", 32768),
        is_tied=_flag(config, "tie_word_embeddings"),
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family == "qwen3",
    )


def _positive_int(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def _positive(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above 0, or `default` where the key is missing or null."""
    value = default if config.get(key) is None else config[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < math.inf  # false for NaN as well
    ):
        raise InputError(f"config.json: {key} must be a finite number above 0, got {value!r}")
    return float(value)


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"config.json: {key} must be true or false, got {value!r}")
    return value


def _kv_groups(config: Mapping[str, Any], heads: int) -> int:
    if config.get("num_key_value_heads") is None:
        return heads
    groups = _positive_int(config, "num_key_value_heads")
    if heads % groups:
        raise InputError(
            f"config.json: num_key_value_heads ({groups}) must divide num_attention_heads ({heads})"
        )
    return groups


def _head_dim(config: Mapping[str, Any], family: str, hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None:
        size = _positive_int(config, "head_dim")
    elif family == "qwen3":
        size = 128  # as transformers fills it in for this family
    elif hidden % heads:
        raise InputError(
            f"config.json: num_attention_heads ({heads}) must divide hidden_size ({hidden}), or"
            " head_dim must be given"
        )
    else:
        size = hidden // heads
    if size % 2:
        raise InputError(f"config.json: head_dim must be even for rotary embedding, got {size}")
    return size


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    reasons = {
        "attention_bias": "a bias on the attention output",
        "mlp_bias": "a bias in the feed-forward layers",
        "use_sliding_window": "sliding-window attention",
    }
    for key, what in reasons.items():
        if config.get(key):
            raise InputError(f"config.json: {key} is set: {what} is not supported")
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise InputError(
            f"config.json: quantization_config is set ({method}): quantised weights cannot be"
            " trained; give the folder of the model in float32, bfloat16 or float16"
        )
    layers = config.get("layer_types") or []
    if not isinstance(layers, list) or any(kind != "full_attention" for kind in layers):
        raise InputError("config.json: layer_types other than full_attention are not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InputError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")


def _rope(config: Mapping[str, Any]) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling`."""
    stated: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key) or {}
        if not isinstance(part, dict):
            raise InputError(f"config.json: {key} must be an object, got {part!r}")
        stated |= part
    theta = _positive({**config, **stated}, "rope_theta", 10000.0)
    share = _positive({**config, **stated}, "partial_rotary_factor", 1.0)
    if share != 1.0:
        raise InputError(f"config.json: partial_rotary_factor {share} is not supported, only 1")
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise InputError(f"config.json: rope type {kind!r} is not supported (default, llama3 are)")
    needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for name in needed:
        if stated.get(name) is None:
            raise InputError(f"config.json: rope type 'llama3' lacks {name}")
    return Rope(
        theta,
        factor=_positive(stated, "factor", 1.0),
        low_freq_factor=_positive(stated, "low_freq_factor", 1.0),
        high_freq_factor=_positive(stated, "high_freq_factor", 1.0),
        original_max_positions=_positive_int(stated, "original_max_position_embeddings"),
    )
