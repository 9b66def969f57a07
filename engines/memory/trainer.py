"""Device memory of a trainer's rank at its largest, from the model's shape and the layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from engines.memory.loss import Place
from engines.memory.model_size import ModelSize
from engines.memory.needs import TrainerNeeds
from engines.memory.step import largest_moment
from engines.memory.weights import rank_weights

RUNTIME_BYTES: dict[Place, int] = {"cpu": 0, "cuda": 4 * 10**9}
"""what a GPU holds of a process beside its tensors: CUDA's context, kernels and cuBLAS' workspaces,
NCCL's buffers, cracks between the allocator's blocks. An allowance: no GPU was at hand to measure.
On a CPU a process has its code in the host's memory anyway"""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Of one rank, in bytes, at the moment when it holds most."""

    weights: int
    gradients: int
    optimizer: int
    copies: int
    activations: int
    """of the moment with most of them, the loss's own memory included"""
    runtime: int
    offloaded: int = 0
    """of the optimizer, in the host's memory for good"""

    @property
    def total(self) -> int:
        return self.state + self.activations + self.runtime

    @property
    def state(self) -> int:
        """What outlives a step."""
        return self.weights + self.gradients + self.optimizer + self.copies

    def host_bytes(self, *, sleeps: bool) -> int:
        """What a rank on a GPU takes of its host's memory at most: a checkpoint's copy until it is
        written, what is offloaded, and the place of what sleeps, which it keeps once it slept."""
        asleep = self.weights + self.optimizer + self.copies if sleeps else 0
        return asleep + self.offloaded + self.weights + self.optimizer + self.offloaded


def trainer_memory(size: ModelSize, needs: TrainerNeeds) -> TrainerMemory:
    """Of the rank that needs most: one of the first or of the last pipeline stage."""
    stages = {0, needs.layout.pp - 1}
    return max((_of_stage(size, needs, s) for s in stages), key=lambda memory: memory.total)


def _of_stage(size: ModelSize, needs: TrainerNeeds, stage: int) -> TrainerMemory:
    layout = needs.layout
    held = rank_weights(size, layout, stage)
    # The optimizer's state is sharded over all ranks that hold the same weights.
    replicas = layout.dp * layout.cp
    sharded = held.dense / replicas + held.experts / max(replicas / layout.ep, 1)
    weights = held.all * needs.value_bytes
    on_device = ceil(sharded * needs.state.on_device(needs.precision))
    whole = replace(needs.state, share_on_device=1.0)
    return TrainerMemory(
        weights=weights,
        gradients=held.all * needs.state.gradient,
        optimizer=on_device,
        copies=needs.copies * weights,
        activations=ceil(largest_moment(size, needs, stage)),
        runtime=RUNTIME_BYTES[needs.place],
        offloaded=ceil(sharded * whole.on_device(needs.precision)) - on_device,
    )
