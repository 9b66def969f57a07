"""Megatron's distributed AdamW and learning-rate schedule, built from a recipe's Optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch.nn.utils import clip_grads_with_norm_

from engines.megatron import device
from engines.megatron.options import OFFLOAD_NEEDS_GPU
from engines.megatron.options_table import filled
from engines.megatron.spec import Optimizer
from engines.megatron.train.adam import FusedAdam
from engines.megatron.train.optimizer_shards import optimizer_parts
from infra.errors import InputError, TrainingStopped


def build_optimizer(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    dtype: torch.dtype,
    options: Mapping[str, Any],
) -> MegatronOptimizer:
    """AdamW with its state sharded over data-parallel ranks; no weight decay on vectors. `options`
    are the recipe's own fields. InputError if Megatron refuses them."""
    if options.get("optimizer_cpu_offload") and not device.has_cuda():
        raise InputError(OFFLOAD_NEEDS_GPU)
    config = filled(
        OptimizerConfig,
        {name: value for name, value in options.items() if name != "use_precision_aware_optimizer"},
        optimizer="adam",
        lr=optimizer.lr,
        min_lr=optimizer.lr * optimizer.min_lr_ratio,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.eps,
        clip_grad=optimizer.clip_grad,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_distributed_optimizer=True,
    )
    if config.optimizer_cpu_offload:
        # Its check asks for the version of Transformer Engine, which offload does without.
        config.use_precision_aware_optimizer = True
        config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
        config.store_param_remainders = False
    with device.cuda_means_cpu():
        built = get_megatron_optimizer(config, [model], use_gloo_process_groups=False)
    for part in optimizer_parts(built):
        make_state(part.optimizer)
    return built


def make_state(optimizer: Any) -> None:
    """Zero moments for every parameter, so that a checkpoint before the first step is whole."""
    if isinstance(optimizer, HybridDeviceOptimizer):
        for inner in optimizer.sub_optimizers:
            make_state(inner)
        # It has no public name for this.
        optimizer._sync_sub_optimizers_state_to_hdo()  # noqa: SLF001
    elif isinstance(optimizer, FusedAdam):
        optimizer.make_state()
    else:
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if isinstance(optimizer, torch.optim.AdamW | torch.optim.Adam):
                zeros = {name: torch.zeros_like(param) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[param].update({"step": torch.zeros(()), **zeros})
            else:  # Transformer Engine's
                optimizer.initialize_state(param, store_param_remainders=False)


def build_scheduler(
    megatron: MegatronOptimizer, optimizer: Optimizer, total_steps: int
) -> OptimizerParamScheduler:
    """Linear warm-up, then the recipe's decay; it ends at optimizer step `total_steps`."""
    return OptimizerParamScheduler(
        megatron,
        init_lr=0.0,
        max_lr=optimizer.lr,
        min_lr=optimizer.lr * optimizer.min_lr_ratio,
        lr_warmup_steps=optimizer.warmup_steps,
        lr_decay_steps=max(total_steps, optimizer.warmup_steps + 1),
        lr_decay_style=optimizer.decay,
        start_wd=optimizer.weight_decay,
        end_wd=optimizer.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )


def apply_step(megatron: MegatronOptimizer, clip_grad: float) -> float:
    """Clip and step; returns the gradient's global norm before clipping.

    Megatron's own `step` in its own parts, so that a gradient that is not finite stops training
    on all ranks before any weight changes. Raises TrainingStopped then.
    """
    with torch.no_grad():
        megatron.prepare_grads()
        with device.cuda_means_cpu():
            norm = float(megatron.get_grad_norm())
        if not math.isfinite(norm):
            raise TrainingStopped(
                f"the gradient norm is {norm}: the weights were left as they were; lower the"
                " learning rate or look at the last batch"
            )
        params = [p for part in optimizer_parts(megatron) for p in part.get_parameters()]
        if clip_grad > 0 and params:
            _clip(params, clip_grad, norm)
        megatron.step_with_ready_grads()
    return norm


def _clip(params: Sequence[Any], most: float, norm: float) -> None:
    """Scale all gradients so that their global norm, which is `norm`, is at most `most`."""
    # An optimizer with states of its own precision takes the gradient under another name.
    decoupled = [p.decoupled_grad for p in params if getattr(p, "decoupled_grad", None) is not None]
    for gradient in decoupled:
        gradient.mul_(min(most / (norm + 1e-6), 1.0))
    if not decoupled:
        clip_grads_with_norm_(params, most, torch.tensor(norm), foreach=True)
