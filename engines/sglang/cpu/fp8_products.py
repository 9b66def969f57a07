"""Layers in FP8 on CPU, where SGLang has no product of its own for them: their matrices are brought
back to the type of the other weights when a load or an update ends, and multiplied like those.

So a CPU rounds matrices as a GPU does, and nothing of what they are multiplied with.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import linear

from engines.sglang.cpu.row_invariant import filled_up
from engines.weights.fp8_blocks import BLOCK, dequantised


def install() -> None:
    """Put it under SGLang's layers of FP8 in blocks."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod, Fp8MoEMethod

    Fp8Config.get_supported_act_dtypes = classmethod(_types)  # pyrefly: ignore[bad-assignment]
    Fp8LinearMethod.process_weights_after_loading = _unpack_matrix
    Fp8LinearMethod.apply = _multiplied
    Fp8MoEMethod.process_weights_after_loading = _unpack_experts
    Fp8MoEMethod.apply = _of_experts


def _types(_config: Any) -> list[torch.dtype]:
    return [torch.float32, torch.bfloat16]


def _unpack_matrix(self: Any, layer: Any) -> None:
    layer.plain = _plain(layer.weight, layer.weight_scale_inv, layer.orig_dtype)


def _unpack_experts(self: Any, layer: Any) -> None:
    dtype = layer.params_dtype
    layer.plain = SimpleNamespace(
        num_experts=layer.num_experts,
        w13_weight=_of_each(layer.w13_weight, layer.w13_weight_scale_inv, dtype),
        w2_weight=_of_each(layer.w2_weight, layer.w2_weight_scale_inv, dtype),
    )


def _of_each(weights: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([_plain(*pair, dtype) for pair in zip(weights, scales, strict=True)])


def _plain(weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return dequantised(weight.data, scales.data, (BLOCK, BLOCK), dtype)


def _multiplied(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
    return filled_up(lambda rows: linear(rows, layer.plain, bias), x)


def _of_experts(self: Any, layer: Any, dispatch_output: Any) -> Any:
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    found = moe_forward_native(
        layer.plain,
        dispatch_output.hidden_states,
        dispatch_output.topk_output,
        self.moe_runner_config,
    )
    return StandardCombineInput(hidden_states=found)
