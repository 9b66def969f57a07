"""What a recipe says about training. Imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from infra.config import Config


class Parallel(Config):
    """How one model is spread over ranks. World size = tp * pp * cp * dp."""

    tp: PositiveInt = 1
    """tensor parallel size; must divide the attention heads and the KV groups"""
    pp: PositiveInt = 1
    """pipeline parallel size"""
    cp: PositiveInt = 1
    """context parallel size"""
    dp: PositiveInt = 1
    """data parallel size"""
    ep: PositiveInt = 1
    """expert parallel size (mixture-of-experts models), within dp"""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


class Optimizer(Config):
    """AdamW with warm-up and decay, as Megatron-core runs it."""

    lr: PositiveFloat
    """peak learning rate"""
    min_lr_ratio: float = Field(default=1.0, ge=0, le=1)
    """final over peak learning rate; 1 keeps it constant after warm-up"""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """shape between peak and final learning rate"""
    warmup_steps: int = Field(default=0, ge=0)
    """optimizer steps of linear warm-up from zero"""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: float = Field(default=0.0, ge=0)
    clip_grad: float = Field(default=1.0, ge=0)
    """global gradient norm bound; 0 turns clipping off"""


class Trainer(Config):
    """How Megatron-core trains, apart from where."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """parameter and compute type; fp32 on CPU"""
    micro_batch_tokens: PositiveInt = 8192
    """most tokens packed into one micro-batch of one rank"""
    megatron: dict[str, Any] = Field(default_factory=dict)
    """any field of Megatron-core's TransformerConfig, passed through by its own name"""
