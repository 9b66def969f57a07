"""Rotary embedding: its settings in a config.json and the rotation speeds that follow. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.data_files.heads import HEAD_BYTES, other_text
from infra.errors import InputError


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
    if said := other_text(data[:HEAD_BYTES]):
        raise InputError(f"config.json: {said}")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
        raise InputError(f"config.json: is not valid JSON: {error}; copy the file again") from error
    if not isinstance(config, dict):
        raise InputError("config.json: must hold a JSON object; copy the file again")
    return config


def positive_int(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def non_negative_int(config: Mapping[str, Any], key: str, default: int) -> int:
    """A number of things that there may be none of."""
    value = config.get(key, default)
    return 0 if type(value) is int and value == 0 else positive_int({key: value}, key)


def positive(config: Mapping[str, Any], key: str, default: float) -> float:
    """A finite number above 0, or `default` where the key is missing or null."""
    value = default if config.get(key) is None else config[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < math.inf  # false for NaN as well
    ):
        raise InputError(f"config.json: {key} must be a finite number above 0, got {value!r}")
    return float(value)


def flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"config.json: {key} must be true or false, got {value!r}")
    return value


def refuse(config: Mapping[str, Any], features: Mapping[str, str]) -> None:
    """InputError if one of these fields is set; `features` says what each would switch on."""
    for key, what in features.items():
        if config.get(key):
            raise InputError(f"config.json: {key} is set: {what} is not supported")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: its base, and where `factor` is not 1 the scaling of its frequencies: that
    of Llama 3, or the same for all of them."""

    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    share: float = 1.0
    """of each head that is rotated: its first part"""
    is_linear: bool = False

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """Half as many rotation speeds in radians a position as a head has rotated numbers, fastest
        first."""
        rotated = int(head_dim * self.share)
        plain = [self.theta ** (-2 * i / rotated) for i in range(rotated // 2)]
        return plain if self.factor == 1.0 else [self._scaled(speed) for speed in plain]

    def _scaled(self, speed: float) -> float:
        """Slow rotations are slowed by `factor`, fast ones kept, those between interpolated."""
        turns = self.original_max_positions * speed / (2 * math.pi)
        if self.is_linear or turns < self.low_freq_factor:
            return speed / self.factor
        if turns > self.high_freq_factor:
            return speed
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - keep) * speed / self.factor + keep * speed


def read_rope(
    config: Mapping[str, Any],
    share: float | None = None,
    scalings: Sequence[str] = ("llama3",),
) -> Rope:
    """Both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling`.

    `share` of each head is rotated where the config does not say it; None: every family but those
    that rotate a part refuses one. Raises InputError for a scaling that is not among `scalings`.
    """
    stated: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = config.get(key) or {}
        if not isinstance(part, dict):
            raise InputError(f"config.json: {key} must be an object, got {part!r}")
        stated |= part
    theta = positive({**config, **stated}, "rope_theta", 10000.0)
    written = positive({**config, **stated}, "partial_rotary_factor", share or 1.0)
    if written > 1 or (share is None and written != 1.0):
        most = "only 1" if share is None else "at most 1"
        raise InputError(f"config.json: partial_rotary_factor {written} is not supported, {most}")
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if kind == "default":
        return Rope(theta, share=written)
    if kind not in scalings:
        known = " and ".join(("default", *scalings))
        raise InputError(f"config.json: rope type {kind!r} is not supported, only {known}")
    if kind == "linear":
        return Rope(theta, factor=positive(stated, "factor", 1.0), share=written, is_linear=True)
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
        share=written,
    )
