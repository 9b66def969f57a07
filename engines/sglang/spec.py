"""What a recipe says about generation. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from infra.config import RESULT_NEUTRAL, Config


class FleetSpec(Config):
    """SGLang servers that share one architecture and one set of weights."""

    max_total_tokens: Annotated[PositiveInt, RESULT_NEUTRAL] = 16384
    """KV-cache capacity of one server, in tokens"""
    context_length: PositiveInt | None = None
    """longest sequence; None: the model's own limit"""
    sglang: dict[str, Any] = Field(default_factory=dict)
    """SGLang server arguments, passed through; names as in SGLang, with underscores"""
