"""What a recipe says about training. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from infra.config import RESULT_NEUTRAL, Config


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

    lr: float = Field(gt=0, le=1)
    """peak learning rate"""
    min_lr_ratio: float = Field(default=1.0, ge=0, le=1)
    """final over peak learning rate; 1 keeps it constant after warm-up"""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """shape between peak and final learning rate"""
    warmup_steps: int = Field(default=0, ge=0)
    """optimizer steps of linear warm-up from zero; no more than the stage has"""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: float = Field(default=0.0, ge=0)
    clip_grad: float = Field(default=1.0, ge=0)
    """global gradient norm bound; 0 turns clipping off"""


class Critic(Config):
    """A second model, from the same weights, that learns what a token's state is worth."""

    lr_ratio: PositiveFloat = 5.0
    """its learning rate over the policy's, whose other optimizer settings it shares; SAO: 5"""
    optimizer: Optimizer | None = None
    """its own, in place of the policy's with `lr_ratio`"""
    warmup_steps: int = Field(default=0, ge=0)
    """steps of the stage at its start in which only the critic learns and the policy stays"""
    steps_per_policy_step: PositiveInt = 2
    """passes over each step's batch, each in as many mini-batches as the policy's one pass"""
    clip: PositiveFloat | None = 0.2
    """how far a value may move in one step of the stage before its loss is held; None: unbounded.
    In units of reward"""
    freeze_attention: bool = False
    """train all weights but those of attention (SAO)"""

    @model_validator(mode="after")
    def _one_learning_rate(self) -> Critic:
        # A form and a recipe on record write the default, too.
        scaled = self.lr_ratio != type(self).model_fields["lr_ratio"].default
        if self.optimizer is not None and scaled:
            raise ValueError("lr_ratio scales the policy's optimizer; leave it out, or `optimizer`")
        return self

    def optimizer_beside(self, policy: Optimizer) -> Optimizer:
        """What it trains with beside a policy that trains with `policy`."""
        return self.optimizer or policy.model_copy(update={"lr": policy.lr * self.lr_ratio})


class Trainer(Config):
    """How Megatron-core trains, apart from where."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """parameter and compute type; fp32 on CPU"""
    micro_batch_tokens: Annotated[PositiveInt, RESULT_NEUTRAL] = 8192
    """most tokens packed into one micro-batch of one rank"""
    megatron: dict[str, Any] = Field(default_factory=dict)
    """any field of Megatron-core's TransformerConfig, passed through by its own name"""
