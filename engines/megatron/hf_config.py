"""What a HF folder's config.json says, as far as training needs it. Pure Python, no torch."""

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
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a HF model folder: it has no config.json; point `model` at a folder"
            " with config.json, tokenizer and safetensors"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} must hold a JSON object")
    return config


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Read a config; raises InputError for a family or feature that is not supported."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputError(
            f"model_type {family!r} is not supported; supported families: {', '.join(FAMILIES)}"
        )
    _refuse_unsupported(config)
    heads = _positive_int(config, "num_attention_heads")
    hidden = _positive_int(config, "hidden_size")
    return ModelShape(
        family=family,
        num_layers=_positive_int(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_groups=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        ffn=_positive_int(config, "intermediate_size"),
        vocab=_positive_int(config, "vocab_size"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        max_positions=int(config.get("max_position_embeddings", 32768)),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family == "qwen3",
    )


def _positive_int(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise InputError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    reasons = {
        "attention_bias": "biases on the attention output",
        "mlp_bias": "biases in the feed-forward layers",
        "use_sliding_window": "sliding-window attention",
    }
    for key, what in reasons.items():
        if config.get(key):
            raise InputError(f"config.json: {key} is set, but {what} is not supported")
    if set(config.get("layer_types") or ()) - {"full_attention"}:
        raise InputError("config.json: layer_types other than full_attention are not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InputError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")


def _rope(config: Mapping[str, Any]) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling`."""
    stated = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    theta = float(stated.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind != "llama3":
        raise InputError(f"config.json: rope type {kind!r} is not supported (default, llama3 are)")
    try:
        return Rope(
            theta,
            factor=float(stated["factor"]),
            low_freq_factor=float(stated["low_freq_factor"]),
            high_freq_factor=float(stated["high_freq_factor"]),
            original_max_positions=int(stated["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise InputError(f"config.json: rope type 'llama3' lacks {error}") from None
