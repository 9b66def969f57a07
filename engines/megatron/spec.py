"""What a recipe says about training. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from infra.config import RESULT_NEUTRAL, Config

KernelChoice = Literal["auto", "fused", "plain"]
Role = Literal["sft", "preference", "reward", "policy", "critic"]
ROLES: Mapping[Role, str] = {
    "sft": "engines.megatron.train.policy_trainers:SftTrainer",
    "preference": "engines.megatron.train.policy_trainers:PreferenceTrainer",
    "reward": "engines.megatron.train.value_trainers:RewardTrainer",
    "policy": "engines.megatron.rl.trainer:RlTrainer",
    "critic": "engines.megatron.train.value_trainers:CriticTrainer",
}


class Parallel(Config):
    """How one model is distributed over ranks. World size = tp * pp * cp * dp."""

    tp: PositiveInt = 1
    """tensor parallel size; must divide the attention heads and the KV groups"""
    pp: PositiveInt = 1
    """pipeline parallel size"""
    cp: PositiveInt = 1
    """context parallel size"""
    dp: PositiveInt = 1
    """data parallel size"""
    ep: PositiveInt = 1
    """expert parallel size: so many ranks share out the routed experts, within tp * cp * dp"""
    etp: PositiveInt | None = None
    """tensor parallel size of each routed expert: 1, or as much as tp; None: as much as tp"""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that share one routed expert."""
        return self.etp or self.tp


class Optimizer(Config):
    """AdamW with warm-up and decay, as Megatron-core runs it."""

    lr: float = Field(gt=0, le=1)
    """peak learning rate"""
    min_lr_ratio: float = Field(default=1.0, ge=0, le=1)
    """final divided by peak learning rate; 1: constant after warm-up"""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """shape of the decay between peak and final learning rate"""
    warmup_steps: int = Field(default=0, ge=0)
    """optimizer steps of linear warm-up from zero; at most those of the stage"""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: float = Field(default=0.0, ge=0)
    clip_grad: float = Field(default=1.0, ge=0)
    """largest global gradient norm; 0: no clipping"""


class Lora(Config):
    """Adapters (LoRA): the model's weights stay, and low-rank matrices beside its linear layers
    train; each adds `alpha / rank` times its product."""

    rank: PositiveInt = 16
    """columns of B and rows of A; at most the hidden size"""
    alpha: PositiveFloat = 32.0
    targets: list[str] | None = Field(default=None, min_length=1)
    """modules of a layer by their names in the model's folder, e.g. `[q_proj, v_proj]`; None: all
    linear ones"""


MICRO_BATCH_TOKENS = 8192


class TrainerSettings(Config):
    """How Megatron-core trains (resources say where)."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """parameter and compute type; fp32 on CPU"""
    micro_batch_tokens: Annotated[PositiveInt | None, RESULT_NEUTRAL] = None
    """largest number of tokens in one micro-batch of one rank; None: 8,192, or fewer where the
    machine that starts the run has too little memory for that, as `tributary check` shows"""
    kernels: Annotated[KernelChoice, RESULT_NEUTRAL] = "auto"
    """auto: the fused kernels that the device has; fused: refuse to start where one is missing;
    plain: none of them"""
    lora: Lora | None = Field(default=None, exclude_if=lambda lora: lora is None)
    """train adapters, not the model's own weights; None: all weights"""
    megatron: dict[str, Any] = Field(default_factory=dict)
    """fields of Megatron-core's TransformerConfig, OptimizerConfig and
    DistributedDataParallelConfig, passed through under their own names"""

    @property
    def most_tokens(self) -> int:
        """Return how many tokens may be in one micro-batch of one rank."""
        return self.micro_batch_tokens or MICRO_BATCH_TOKENS


class CriticSettings(Config):
    """A second model, from the same weights, that learns the value of a token's state."""

    lr_ratio: PositiveFloat = 5.0
    """critic's learning rate divided by the policy's; other settings are the policy's; SAO: 5"""
    optimizer: Optimizer | None = None
    """optimizer of its own, instead of the policy's with `lr_ratio`"""
    trainer: TrainerSettings | None = None
    """precision, micro-batches and Megatron's options of its own, instead of the policy's"""
    warmup_steps: int = Field(default=0, ge=0)
    """number of first steps in which only the critic trains and the policy does not change"""
    steps_per_policy_step: PositiveInt = 2
    """passes over each step's batch, each in as many mini-batches as the policy's one pass"""
    clip: PositiveFloat | None = 0.2
    """how far a value may move in one step before its loss is clipped, in units of reward; None:
    no limit"""
    freeze_attention: bool = False
    """keep the attention weights fixed and train all others (SAO)"""

    @model_validator(mode="after")
    def _one_learning_rate(self) -> CriticSettings:
        # A form and a recipe on record write the default, too.
        scaled = self.lr_ratio != type(self).model_fields["lr_ratio"].default
        if self.optimizer is not None and scaled:
            raise ValueError("lr_ratio scales the policy's optimizer; leave it out, or `optimizer`")
        return self

    def optimizer_beside(self, policy: Optimizer) -> Optimizer:
        """The critic's optimizer, given the policy's optimizer `policy`."""
        return self.optimizer or policy.model_copy(update={"lr": policy.lr * self.lr_ratio})

    def trainer_beside(self, policy: TrainerSettings) -> TrainerSettings:
        """Return how the critic trains, given how the policy does."""
        return self.trainer or policy
