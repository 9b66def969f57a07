"""Device memory of a trainer's rank at its largest, from the model's shape and the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from engines.megatron.spec import Lora, Parallel
from engines.memory.activations import (
    NOTHING,
    LossMemory,
    Place,
    Recompute,
    kept_values,
    loss_memory,
    micro_batches_in_flight,
    working_values,
)
from engines.memory.model_size import ModelSize

RUNTIME_BYTES: dict[Place, int] = {"cpu": 0, "cuda": 4 * 10**9}
"""what a GPU holds of a process beside its tensors: CUDA's context, kernels and cuBLAS' workspaces,
NCCL's buffers, cracks between the allocator's blocks. An allowance: no GPU was at hand to measure.
On a CPU a process has its code in the host's memory anyway"""
_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """The memory of one rank, in bytes, at the moment when it holds most."""

    weights: int
    gradients: int
    optimizer: int
    copies: int
    activations: int
    """of the moment with most of them, the loss's own memory included"""
    runtime: int
    offloaded: int = 0
    """of the optimizer, in the host's memory for good"""
    offloaded_gradients: int = 0
    """in fp32, beside that: what the optimizer there reads"""

    @property
    def total(self) -> int:
        return self.state + self.activations + self.runtime

    @property
    def state(self) -> int:
        """Return what outlives a step."""
        return self.weights + self.gradients + self.optimizer + self.copies

    def host_bytes(self, *, sleeps: bool) -> int:
        """Return what a rank on a GPU takes of its host's memory at most: a checkpoint's copy until
        it is written, what is offloaded, and the place of what sleeps, which it keeps once it
        slept."""
        asleep = self.weights + self.optimizer + self.copies if sleeps else 0
        saved = self.weights + self.optimizer + self.offloaded
        return asleep + self.offloaded + self.offloaded_gradients + saved


def trainer_memory(size: ModelSize, needs: TrainerNeeds) -> TrainerMemory:
    """Compute the memory of the rank that needs most: one of the first or of the last pipeline
    stage."""
    stages = {0, needs.layout.pp - 1}
    return max((_of_stage(size, needs, s) for s in stages), key=lambda memory: memory.total)


def _of_stage(size: ModelSize, needs: TrainerNeeds, stage: int) -> TrainerMemory:
    layout = needs.layout
    held = rank_weights(size, layout, stage)
    added = adapter_weights(size, needs)
    trained = held if needs.lora is None else added
    # The optimizer's state is sharded over all ranks that hold the same weights.
    replicas = layout.dp * layout.cp
    expert_replicas = layout.tp * replicas / (layout.expert_tp * layout.ep)
    sharded = trained.dense / replicas + trained.experts / max(expert_replicas, 1)
    weights = (held.all + added.all) * needs.value_bytes
    on_device = ceil(sharded * needs.state.on_device(needs.precision))
    whole = replace(needs.state, share_on_device=1.0)
    return TrainerMemory(
        weights=weights,
        gradients=trained.all * needs.state.gradient,
        optimizer=on_device,
        # Of each of the likeliest tokens a number and a logprob.
        copies=needs.copies * held.all * needs.value_bytes + 8 * needs.num_top * needs.places,
        activations=ceil(largest_moment(size, needs, stage)),
        runtime=RUNTIME_BYTES[needs.place],
        offloaded=ceil(sharded * whole.on_device(needs.precision)) - on_device,
        offloaded_gradients=ceil(sharded * 4 * (1 - needs.state.share_on_device)),
    )


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """What the optimizer keeps of each weight, in bytes."""

    gradient: int = 4
    """gradients are summed in fp32, unless `grad_reduce_in_fp32` is false"""
    moments: int = 8
    """two of them"""
    main: int = 4
    """the optimizer's own copy of weights that are not fp32"""
    share_on_device: float = 1.0
    """of moments and copies; the rest is in host memory"""

    def on_device(self, precision: str) -> float:
        """Return the bytes of moments and, where fp32 weights are not the copy themselves,
        copies."""
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


VALUE_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class TrainerNeeds:
    layout: Parallel
    precision: str
    tokens: int
    """in a rank's micro-batch at most"""
    recompute: Recompute = NOTHING
    copies: int = 0
    """further sets of weights: one for the reference"""
    has_teachers: bool = False
    """whether frozen models take the place of the weights, one at a time"""
    num_top: int = 0
    """of the likeliest tokens that teachers name at each place"""
    places: int = 0
    """trained tokens of a step, where teachers name such tokens"""
    place: Place = "cuda"
    state: OptimizerState = IN_FP32
    lora: Lora | None = None
    """adapters that train in place of the weights"""

    @property
    def value_bytes(self) -> int:
        """Return the bytes of a weight and of an activation."""
        return VALUE_BYTES[self.precision]


@dataclass(frozen=True, slots=True)
class RankWeights:
    """The weights of one rank."""

    dense: int
    """all but the routed experts'; every data-parallel rank has the same ones"""
    experts: int

    @property
    def all(self) -> int:
        return self.dense + self.experts


def layers_of(size: ModelSize, layout: Parallel) -> int:
    """Layers of one pipeline stage; of the largest, where they are not even."""
    return -(-size.num_layers // layout.pp)


def rank_weights(size: ModelSize, layout: Parallel, stage: int) -> RankWeights:
    """Count the weights of a rank of pipeline stage `stage`.

    The first stage has the embedding, the last one the output layer and the last norm. Where the
    two are tied and lie on different stages, both hold them.
    """
    share = layers_of(size, layout) / size.num_layers
    is_first, is_last = stage == 0, stage == layout.pp - 1
    tops = is_first + (is_last and not size.has_value_head and not (is_first and size.is_tied))
    dense = share * (size.split_weights / layout.tp + size.whole_weights)
    dense += tops * size.vocab * size.hidden / layout.tp
    if is_last:
        dense += size.hidden + (size.hidden + 1 if size.has_value_head else 0)
    experts = share * size.expert_weights / (layout.expert_tp * layout.ep)
    return RankWeights(round(dense), round(experts))


def adapter_weights(size: ModelSize, needs: TrainerNeeds) -> RankWeights:
    """Return A [rank, columns] and B [rows, rank] of all adapted matrices of a rank's layers."""
    if needs.lora is None:
        return RankWeights(0, 0)
    layout, targets = needs.layout, needs.lora.targets or size.linears.keys()
    adapted = [linear for name in targets for linear in size.linears.get(name, ())]
    dense = sum(s.shared / layout.tp + s.whole for s in adapted if not s.are_routed)
    experts = sum(s.shared / layout.expert_tp + s.whole for s in adapted if s.are_routed)
    scale = needs.lora.rank * layers_of(size, layout) / size.num_layers
    return RankWeights(ceil(scale * dense), ceil(scale * experts / layout.ep))


def largest_moment(size: ModelSize, needs: TrainerNeeds, stage: int) -> float:
    """Bytes, on a rank of this pipeline stage."""
    moments = [_in_backward(size, needs, stage)]
    if stage == needs.layout.pp - 1:
        moments += _at_loss(size, needs, stage)
    if stage == 0:
        moments.append(_embedding(size, needs) + _pending(size, needs) + _layer(size, needs))
    if needs.place == "cpu":
        # gloo sums gradients over ranks in a copy of all of them; NCCL does it in their place.
        held = rank_weights(size, needs.layout, stage)
        summed = held if needs.lora is None else adapter_weights(size, needs)
        moments.append(summed.all * needs.state.gradient)
    return max(moments)


def _in_backward(size: ModelSize, needs: TrainerNeeds, stage: int) -> float:
    """In the last layer's backward pass, with all other values still there."""
    layers, again = layers_of(size, needs.layout), needs.recompute
    others = (micro_batches_in_flight(needs.layout, stage) - 1) * _waiting(size, needs)
    kept = again.whole_layers(layers) * _layer(size, needs) + _inputs(size, needs)
    working = working_values(size, again) * _value_of_all_tokens(needs)
    # The gradient of gate and up, until it is added to the others.
    matrix = 2 * size.ffn * size.hidden * needs.value_bytes / needs.layout.tp
    matrix = matrix if needs.lora is None else 0
    return others + kept + working + matrix + _pending(size, needs)


def _at_loss(size: ModelSize, needs: TrainerNeeds, stage: int) -> Iterator[float]:
    if size.has_value_head:
        return
    loss = _loss(size, needs)
    # With sequence parallelism the rows are chosen from the whole sequence.
    whole = needs.tokens * size.hidden * needs.value_bytes if needs.layout.tp > 1 else 0
    # Both models' logprobs of the compared tokens, and what the KL and its gradient are made of.
    compared = 8 * 4 * needs.num_top * needs.tokens
    yield _waiting(size, needs) + whole + loss.backward + compared
    if needs.copies or needs.has_teachers:
        # The policy's own weights wait beside the frozen model's.
        own = rank_weights(size, needs.layout, stage).all * needs.value_bytes
        yield own + _layer(size, needs) + whole + loss.scoring


def _waiting(size: ModelSize, needs: TrainerNeeds) -> float:
    """Return what a micro-batch keeps between its passes."""
    layers, again = layers_of(size, needs.layout), needs.recompute
    return again.untouched_layers(layers) * _layer(size, needs) + _inputs(size, needs)


def _layer(size: ModelSize, needs: TrainerNeeds) -> float:
    values = kept_values(size, needs.recompute, needs.layout.cp)
    return values * _value_of_all_tokens(needs)


def _inputs(size: ModelSize, needs: TrainerNeeds) -> float:
    kept = needs.recompute.inputs_kept(layers_of(size, needs.layout))
    return kept * size.hidden * _value_of_all_tokens(needs)


def _value_of_all_tokens(needs: TrainerNeeds) -> float:
    """Bytes of one value of each of a rank's tokens, shared out over tensor-parallel ranks."""
    return needs.tokens * needs.value_bytes / needs.layout.tp


def _embedding(size: ModelSize, needs: TrainerNeeds) -> float:
    return size.vocab * size.hidden * needs.value_bytes / needs.layout.tp


def _pending(size: ModelSize, needs: TrainerNeeds) -> float:
    """The output layer's gradient waits for the embedding's where both are one weight."""
    is_one = size.is_tied and needs.layout.pp == 1 and needs.lora is None
    return _embedding(size, needs) if is_one else 0.0


def _loss(size: ModelSize, needs: TrainerNeeds) -> LossMemory:
    """With every token trained on."""
    vocab = ceil(size.vocab / needs.layout.tp)
    return loss_memory(
        *(needs.tokens, size.hidden, vocab, needs.value_bytes, needs.place),
        trains_weight=needs.lora is None,
    )
