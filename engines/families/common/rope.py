"""Rotary embedding: its settings in a config.json and the rotation speeds that follow. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.families.common.config import positive, positive_int
from infra.errors import InputError


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


def read_rope(config: Mapping[str, Any]) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling`.

    Raises InputError for a scaling that is not supported.
    """
    stated: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key) or {}
        if not isinstance(part, dict):
            raise InputError(f"config.json: {key} must be an object, got {part!r}")
        stated |= part
    theta = positive({**config, **stated}, "rope_theta", 10000.0)
    share = positive({**config, **stated}, "partial_rotary_factor", 1.0)
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
        factor=positive(stated, "factor", 1.0),
        low_freq_factor=positive(stated, "low_freq_factor", 1.0),
        high_freq_factor=positive(stated, "high_freq_factor", 1.0),
        original_max_positions=positive_int(stated, "original_max_position_embeddings"),
    )
