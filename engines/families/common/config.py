"""A HF folder's config.json, and checked reading of its fields. Pure Python, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
