"""Bytes of gradients and of the optimizer's state, as Megatron-core's options say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Of each weight, in bytes."""

    gradient: int = 4
    """gradients are summed in fp32, unless `grad_reduce_in_fp32` is false"""
    moments: int = 8
    """two of them"""
    main: int = 4
    """the optimizer's own copy of weights that are not fp32"""
    share_on_device: float = 1.0
    """of moments and copies; the rest is in host memory"""

    def on_device(self, precision: str) -> float:
        """Of moments and, where fp32 weights are not the copy themselves, copies."""
        main = 0 if precision == "fp32" else self.main
        return (self.moments + main) * self.share_on_device


IN_FP32 = OptimizerState()


def optimizer_state(precision: str, options: Mapping[str, Any]) -> OptimizerState:
    """From `trainer.megatron`. Example: {"use_precision_aware_optimizer": True,
    "optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}."""
    in_fp32 = options.get("grad_reduce_in_fp32", True)
    is_offloaded = options.get("optimizer_cpu_offload")
    return OptimizerState(
        gradient=4 if in_fp32 else _BYTES[precision],
        share_on_device=1 - (options.get("optimizer_offload_fraction") or 0) if is_offloaded else 1,
    )
