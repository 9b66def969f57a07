"""Latent attention (MLA) of SGLang's DeepSeek classes on CPU.

SGLang's backend for CPUs without AMX reads keys and values from a cache of latents, so that every
pass has to take the way on which queries are brought to the latents' space. The products of that
way are filled up as all others are (`row_invariant.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from engines.sglang.cpu.row_invariant import FEWEST


class FilledTorch:
    """torch, with products of as many rows at least as `filled_up` has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def bmm(
        input_NRK: torch.Tensor, weight_NKC: torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        rows = input_NRK.shape[1]
        padded = torch.nn.functional.pad(input_NRK, (0, 0, 0, max(FEWEST - rows, 0)))
        found = torch.bmm(padded, weight_NKC)[:, :rows]
        return found if out is None else out.copy_(found)


def install() -> None:
    """Put it under SGLang's attention of DeepSeek models."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope
    from sglang.srt.models import deepseek_v2
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        AttnForwardMethod,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods import forward_mla

    def absorbed(_attention: Any, _batch: Any) -> Any:
        return AttnForwardMethod.MLA

    AttentionBackendRegistry.register("torch_native", absorbed)
    forward_mla.torch = FilledTorch()  # pyrefly: ignore[bad-assignment]
    deepseek_v2.get_rope_wrapper = partial(_rope, get_rope, deepseek_v2.get_rope_wrapper)


def _rope(plain: Any, stock: Any, *sizes: Any, device: Any = None, **named: Any) -> Any:
    """On CPU SGLang knows rotary embedding of these models with YaRN only, and plain everywhere."""
    if named.get("rope_scaling") is None:
        return plain(*sizes, **named)
    return stock(*sizes, device=device, **named)
