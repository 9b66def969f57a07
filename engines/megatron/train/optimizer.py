"""Megatron's distributed AdamW and learning-rate schedule, built from a recipe's Optimizer; and a
rank's share of the optimizer's state, as pieces of whole tensors and without copies.

Megatron's distributed optimizer lays all parameters end to end and cuts that into equal ranges, one
for each data-parallel rank. A range of a matrix is three rectangles at most: the rest of a row,
whole rows, the start of a row. Each is a `ShardedTensor` of the parameter's own global tensor:
every rank writes and reads exactly what it holds, nothing is gathered, any layout can read it.

Megatron's own forms either gather the state on every rank (`fully_reshardable`) or are bound to
tp and pp (`dp_reshardable`); `fully_sharded_model_space` says the same as this, and has not worked
since 0.16 refuses `flattened_range`. The names in a checkpoint are those of `fully_reshardable`.
"""

# The optimizer has no public name for the state of one parameter.
# ruff: noqa: SLF001

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, cast

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from engines.megatron import device
from engines.megatron.options import OFFLOAD_NEEDS_GPU
from engines.megatron.options_table import filled
from engines.megatron.spec import Optimizer
from engines.megatron.train.adam import FusedAdam
from infra.errors import InputError, TrainingStopped

Shape = tuple[int, ...]


def rectangles(start: int, stop: int, shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    """(offset, shape) of the least rectangles that elements `start` to `stop` of a tensor of this
    shape consist of, in their order in memory."""
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row, rest = prod(shape[1:]), shape[1:]
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _of_row(last, start - last * row, stop - last * row, rest)
        return
    yield from _of_row(first - 1, start - (first - 1) * row, row, rest)
    if first < last:
        yield (first, *(0 for _ in rest)), (last - first, *rest)
    yield from _of_row(last, 0, stop - last * row, rest)


def _of_row(row: int, start: int, stop: int, rest: Shape) -> Iterator[tuple[Shape, Shape]]:
    if start < prod(rest):
        for offset, shape in rectangles(start, stop, rest):
            yield (row, *offset), (1, *shape)


def optimizer_parts(optimizer: Any) -> list[Any]:
    """The distributed optimizers that a Megatron optimizer consists of, without one that has no
    weight: where only experts have adapters."""
    parts: list[Any] = list(getattr(optimizer, "chained_optimizers", [optimizer]))
    return [part for part in parts if not part.is_stub_optimizer]


class OptimizerShards:
    """The state of all parameters that this rank updates; loading into `tensors` changes it."""

    def __init__(self, optimizer: Any, model: Mapping[str, Any]) -> None:
        """`model`: the model's sharded state dict, which says where each parameter belongs."""
        places = {id(place.data): place for place in nested_values(dict(model))}
        self.tensors: dict[str, ShardedTensor] = {}
        self._states: list[tuple[Any, Tensor, dict[str, Tensor]]] = []
        for part in optimizer_parts(optimizer):
            for param, start, stop in _ranges(part):
                states = _states_of(part, param)
                self._states.append((part, param, states))
                for name, state in states.items():
                    prefix = f"optimizer.state.{_NAMES.get(name, name)}"
                    for piece in _pieces(places[id(param)], param, state, start, stop, part):
                        piece.key = f"{prefix}.{piece.key}"
                        self.tensors[str(len(self.tensors))] = piece

    def loaded(self) -> None:
        """Hand what was loaded to optimizers that keep their state in another form."""
        for part, param, states in self._states:
            if part.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8:
                part._set_main_param_and_optimizer_states(param, states)
        for part in {id(part): part for part, _, _ in self._states}.values():
            if part.config.optimizer_cpu_offload:
                part.optimizer._sync_hdo_state_to_sub_optimizers()
                # The one on the device has the count of steps by now, and goes on with it: it would
                # get the one of the checkpoint again at each step.
                for group in part.optimizer.param_groups:
                    group.pop("step", None)


_NAMES = {"param": "fp32_param"}
"""what a checkpoint calls a state, where Megatron's optimizer says it differently"""


def _ranges(part: Any) -> Iterator[tuple[Tensor, int, int]]:
    """Each parameter with its elements that this rank updates."""
    for buffer in part.gbuf_ranges:
        for buckets in buffer.values():
            for bucket in buckets:
                for param, ranges in bucket["param_map"].items():
                    if ranges["param"].size:
                        yield param, ranges["param"].start, ranges["param"].end


def _states_of(part: Any, param: Tensor) -> dict[str, Tensor]:
    """By name, [stop - start] each; the optimizer's own weight only where the model's is not it."""
    states: dict[str, Tensor] = part._get_main_param_and_optimizer_states(param)
    weight = states.get("param")
    shared = weight is not None and (
        weight.untyped_storage().data_ptr() == param.untyped_storage().data_ptr()
    )
    return {
        name: state.detach()
        for name, state in states.items()
        if state.dim() and not (shared and name == "param")
    }


def _pieces(
    place: Any, param: Tensor, state: Tensor, start: int, stop: int, part: Any
) -> Iterator[ShardedTensor]:
    """Elements `start` to `stop` of `param`, of which `state` has the values."""
    is_split = isinstance(place, ShardedTensorFactory)
    with torch.no_grad():
        wholes: list[ShardedTensor] = list(nested_values(place.build())) if is_split else [place]
    for whole in wholes:
        data: Any = whole.data
        first = (data.data_ptr() - param.data_ptr()) // param.element_size()
        low, high = max(start, first), min(stop, first + data.numel())
        at = low - start
        lead = whole.prepend_axis_num
        *stage_and_shard, _ = cast("tuple[int, int, int]", whole.replica_id)
        for offset, shape in rectangles(low - first, high - first, tuple(whole.local_shape)):
            moved = zip(whole.global_offset[lead:], offset, strict=True)
            local = ((1,) * lead) + shape
            yield ShardedTensor(
                key=whole.key,
                data=state[at : at + prod(shape)].view(local),
                dtype=state.dtype,
                local_shape=local,
                global_shape=whole.global_shape,
                global_offset=(*whole.global_offset[:lead], *(a + b for a, b in moved)),
                axis_fragmentations=None,
                # Data-parallel ranks have different pieces; tensor-parallel ones may have the same.
                replica_id=(*stage_and_shard, part.distributed_optimizer_instance_id),
                allow_shape_mismatch=whole.allow_shape_mismatch,
            )
            at += prod(shape)


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
        optimizer._sync_sub_optimizers_state_to_hdo()
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
