"""One rank's share of one model in training: Megatron-core's model, optimizer and schedule.

What a policy and a critic have in common. All ranks of a layout call the same method with the same
arguments at the same time; every rank returns the same numbers, or raises the same error before any
weight changed. How one step goes:

    sequences -> micro-batch plan -> packs -> forward, loss, backward (Megatron's schedule)
              -> statistics summed over ranks -> checks -> clip, AdamW step
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from numpy.typing import NDArray
from torch import Tensor

from engines.batching import plan_micro_batches
from engines.devices.units import TRAINER_PARTS, Held, TrainerPart
from engines.devices.waiting_time import transfer_bound_s
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron import device, kernels
from engines.megatron.adapters import add_adapters
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import gathered_tensors, load_weights
from engines.megatron.layers import Routers
from engines.megatron.model import DTYPES, PackedModel, build_model, freeze, transformer_config
from engines.megatron.options import check_layout, check_lora
from engines.megatron.options_table import filled
from engines.megatron.parallel import current_layout, wait_for_all
from engines.megatron.spec import CriticSettings, Optimizer, Parallel, TrainerSettings
from engines.megatron.train.checkpoint import CheckpointBeingWritten, TrainingState, seed_all
from engines.megatron.train.objectives import Objective, scoring_step, training_step
from engines.megatron.train.optimizer import (
    apply_step,
    build_optimizer,
    build_scheduler,
    optimizer_parts,
)
from engines.megatron.train.pack import FlatSequences, Pack, build_pack, in_turn
from engines.megatron.train.sleep import HostMemory, SleepingMemory, on_device, put_to_sleep
from engines.megatron.train.speed import Stopwatch, mfu
from infra.errors import TrainingStopped

_EXPORT_S = 600.0
"""what writing a model of no size may take"""


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of one forward and backward, summed over all micro-batches and ranks."""

    sums: dict[str, float]
    peaks: dict[str, float]

    def mean(self, name: str, per: str) -> float:
        return self.sums[name] / max(self.sums[per], 1.0)


class Training:
    """This process's share of one model in training; `start_parallel` comes first."""

    has_value_head: ClassVar[bool] = False

    def __init__(
        self,
        spec: TrainerSettings,
        optimizer: Optimizer,
        parallel: Parallel,
        model: Path,
        seed: int,
        total_steps: int,
        critic: CriticSettings | None = None,
    ) -> None:
        """Load the HF folder `model`. The learning rate's decay ends at step `total_steps`; only a
        critic has `critic`. Raises InputError for a folder, layout or option that cannot work."""
        config = read_config(model)
        check_layout(config, parallel, spec.megatron, spec.precision)
        check_lora(config, spec.lora, spec.megatron, has_value_head=self.has_value_head)
        self.spec, self.seed, self.critic = spec, seed, critic
        self.layout = current_layout(parallel)
        self.shape = model_shape(config)
        if self.has_value_head:
            self.shape = replace(self.shape, has_value_head=True, is_tied=False)
        kernels.choose(spec.kernels)
        self.steps_done = 0
        """optimizer steps so far"""
        self.scored_flops = 0.0
        """of the passes without a gradient since the last `rates`, on all ranks together"""
        seed_all(seed)
        self.config = transformer_config(self.shape, self.layout, spec.precision, spec.megatron)
        self.network = build_model(self.shape, self.config, self.layout)
        self._routers = Routers.of(self.network, self.config)
        self._model = model
        self.load_folder(model)
        freeze(self.network, self.frozen_parts())
        if spec.lora is not None:
            add_adapters(self.network, spec.lora, self.shape, self.layout, seed)
        self._ddp = self._data_parallel(self.network)
        self._optimizer_spec = optimizer
        self._optimizer = build_optimizer(
            self._ddp, optimizer, DTYPES[spec.precision], spec.megatron
        )
        self._scheduler = build_scheduler(self._optimizer, optimizer, total_steps)
        self._run_schedule = get_forward_backward_func()
        self._asleep: dict[TrainerPart, SleepingMemory] = {}
        self._waiting_room: dict[TrainerPart, HostMemory] = {}
        """of each part that slept; kept, because pinning memory takes longer than copying to it"""
        state = (self._ddp, self._optimizer, self._scheduler, self.layout, seed)
        self._state = TrainingState(*state, has_adapters=spec.lora is not None)
        self._writing: CheckpointBeingWritten | None = None

    def frozen_parts(self) -> Sequence[str]:
        """Return parts of the names of the parameters that stay as they are."""
        return ()

    def load_folder(self, folder: Path) -> None:
        """Put an HF folder's weights in place of the model's; the optimizer knows nothing of it."""
        weights = HfWeights(folder)
        load_weights(self.network, self.shape, self.layout, weights.read, weights.file_of)

    def _data_parallel(self, network: PackedModel) -> DistributedDataParallel:
        half, parallel = self.config.bf16, self.layout.parallel
        ddp = DistributedDataParallel(
            self.config,
            filled(
                DistributedDataParallelConfig,
                self.spec.megatron,
                use_distributed_optimizer=True,
                grad_reduce_in_fp32=True,
                # Beside the backward pass, where a device can do both at once.
                overlap_grad_reduce=device.has_cuda() and parallel.dp * parallel.cp > 1,
            ),
            Float16Module(self.config, network) if half else network,
        )
        # Set only now: the schedule reads them, and building the model must not.
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.no_sync_func = ddp.no_sync
        return ddp

    # Steps

    def update(self) -> float:
        """Advance the learning rate, clip and step; returns the gradient norm."""
        # Before the step: a warm-up that starts from zero would waste the first step.
        self._scheduler.step(increment=1)
        norm = apply_step(self._optimizer, self._optimizer_spec.clip_grad)
        self.steps_done += 1
        return norm

    def forward_backward(
        self, flat: FlatSequences, indices: np.ndarray, objective: Objective
    ) -> StepStats:
        """Leave the gradient with the optimizer. TrainingStopped if the loss is not finite."""
        self._ddp.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._routers.begin(objective.total_units(flat, indices), flat.lengths[indices].sum())
        packs = self._packs(flat, indices)
        parts = self._schedule(packs, training_step(objective))
        stats = self._sum_over_ranks(objective, parts)
        if stats.sums["units"] < 1:
            raise TrainingStopped("the batch has no trained token: its loss mask is all zero")
        if not math.isfinite(stats.sums["loss"]):
            raise TrainingStopped(
                f"the loss is {stats.mean('loss', 'units')} at optimizer step"
                f" {self.steps_done + 1}: the weights were left as they were"
            )
        return stats

    def _packs(self, flat: FlatSequences, indices: np.ndarray) -> list[Pack]:
        return [build_pack(flat, part, self.layout) for part in self._plan(flat, indices)]

    def _plan(self, flat: FlatSequences, indices: NDArray[np.int64]) -> list[list[int]]:
        """The sequences of each of this rank's micro-batches."""
        rows, flops = flat.comparisons(indices), self._flops(flat)
        plan = plan_micro_batches(
            [int(flat.lengths[row].sum()) for row in rows],
            # Context parallelism shares each pack, so that a rank holds this many tokens of it.
            self.spec.most_tokens * self.layout.parallel.cp,
            self.layout.parallel.dp,
            [float(flops[row].sum()) for row in rows],
        )
        parts = plan[self.layout.dp_rank]
        return [[number for at in part for number in rows[at].tolist()] for part in parts]

    def own_part(
        self, flat: FlatSequences, mini_batches: Sequence[NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """The sequences on which this rank trains when it trains on all of these."""
        parts = (part for each in mini_batches for part in self._plan(flat, each))
        return np.unique(np.array([number for part in parts for number in part], np.int64))

    def _flops(self, flat: FlatSequences) -> NDArray[np.float64]:
        """Return the FLOPs of each sequence, forward and backward."""
        return self.shape.family.flops(self.shape, flat.lengths, flat.num_trained)

    def _schedule(
        self, packs: list[Pack], forward: Any, *, forward_only: bool = False
    ) -> list[Any]:
        """Run Megatron's schedule; returns what `forward` left on the last pipeline stage."""
        return self._run_schedule(
            forward_step_func=forward,
            data_iterator=in_turn(packs, self.layout.parallel.pp),
            model=[self._ddp],
            num_microbatches=len(packs),
            # Shapes travel with the tensors (variable_seq_lengths); these are not used.
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _sum_over_ranks(
        self, objective: Objective, parts: list[tuple[Tensor, Tensor]]
    ) -> StepStats:
        counts = self.layout.is_loss_rank
        place = device.device()
        sums = torch.zeros(len(objective.sums), dtype=torch.float64, device=place)
        peaks = torch.zeros(len(objective.peaks), dtype=torch.float64, device=place)
        for part_sums, part_peaks in parts if counts else []:
            sums += part_sums
            peaks = torch.maximum(peaks, part_peaks)
        if self.layout.world > 1:
            dist.all_reduce(sums)
            dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
        return StepStats(
            dict(zip(objective.sums, sums.tolist(), strict=True)),
            dict(zip(objective.peaks, peaks.tolist(), strict=True)),
        )

    def rates(self, flat: FlatSequences, began: Stopwatch) -> dict[str, float]:
        """Metrics of a step that trained on these sequences once."""
        seconds = began.seconds
        tokens = int(flat.lengths.sum())
        # No gradient of a frozen weight is computed: a third of a pass there and back.
        trained = float(self._flops(flat).sum()) * (1.0 if self.spec.lora is None else 2 / 3)
        flops = trained + self.scored_flops
        self.scored_flops = 0.0
        return {
            "lr": float(self._optimizer.param_groups[0]["lr"]),
            "tokens": float(tokens),
            "trained_tokens": float(flat.trained.sum()),
            "seconds": seconds,
            "cpu_seconds": began.cpu_seconds,
            "tokens_per_s": tokens / seconds,
            **self._routers.load(self.layout),
            **mfu(flops, seconds, DTYPES[self.spec.precision], self.layout.world),
        }

    # Scoring

    def read(
        self, flat: FlatSequences, head: Mapping[str, Any], indices: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """Return what the model's head says first of every trained token, as flat as the tokens; 0
        for others. `head` as in `Objective.head`; `indices`: of these sequences only. No update."""
        chosen = np.arange(len(flat.lengths)) if indices is None else indices
        scored = [(pack, said[0]) for pack, said in self.said(flat, head, chosen)]
        return self.gathered(scored, flat.num_tokens)

    @torch.no_grad()
    def said(
        self, flat: FlatSequences, head: Mapping[str, Any], chosen: NDArray[np.int64]
    ) -> list[tuple[Pack, Tensor]]:
        """All that the head says of this rank's packs; none before the last pipeline stage."""
        packs = self._packs(flat, chosen)
        # A pass forward is a third of one there and back.
        self.scored_flops += float(self._flops(flat)[chosen].sum()) / 3
        scored = self._schedule(packs, scoring_step(head), forward_only=True)
        if flat.routes is not None:
            flat.routes.note([pack.routes for pack in packs if pack.routes], self.layout)
        return list(zip(packs, scored, strict=True)) if self.layout.is_last_stage else []

    def gathered(self, scored: Sequence[tuple[Pack, Tensor]], total: int) -> NDArray[np.float32]:
        """All ranks' scores of their packs' trained tokens as one [total] array, everywhere."""
        whole = torch.zeros(total, device=device.device())
        if self.layout.is_loss_rank:
            for pack, values in scored:
                whole[torch.from_numpy(pack.targets)] = values
        if self.layout.world > 1:
            dist.all_reduce(whole)
        return whole.cpu().numpy()

    # Device memory

    @property
    def asleep(self) -> frozenset[TrainerPart]:
        return frozenset(self._asleep)

    def hold(self, parts: Collection[TrainerPart]) -> Held:
        """Have these parts on the device, and no others: first the others give their memory back.

        What wakes has the same bits as before, but gradients: those are zero, as every step begins
        by making them.
        """
        given_back = 0
        for part in sorted(TRAINER_PARTS.difference(parts, self._asleep)):
            self._asleep[part] = self._put_to_sleep(part)
            given_back += self._asleep[part].num_bytes
        for part in self._asleep.keys() & set(parts):
            self._asleep.pop(part).wake()
        # Their pages are gone, which a walk over all tensors cannot see.
        emptied = set[int]().union(*(memory.addresses for memory in self._asleep.values()))
        left, largest = on_device(emptied)
        asleep = sum(memory.num_bytes for memory in self._asleep.values())
        return Held(given_back, asleep, left, largest)

    def _put_to_sleep(self, part: TrainerPart) -> SleepingMemory:
        tensors = self.tensors_of(part)
        room = self._waiting_room.setdefault(part, HostMemory()) if device.has_cuda() else None
        if part == "gradients":
            return put_to_sleep((), tensors, host=room)
        # In fp32 the optimizer steps on the weights themselves.
        weights = self.tensors_of("weights") if part != "weights" else ()
        return put_to_sleep(tensors, (), weights, room)

    def tensors_of(self, part: TrainerPart) -> Iterator[Tensor]:
        """All tensors of a part that outlive a step; several may share memory."""
        match part:
            case "weights":
                yield from self._ddp.parameters()
                yield from self.network.buffers()
                yield from (x.param_data for x in self._flat_memory if x.param_data is not None)
            case "gradients":
                yield from (x.grad_data for x in self._flat_memory)
            case "optimizer":
                here = device.device().type  # offloaded state lies in host memory
                for each in optimizer_parts(self._optimizer):
                    for group in each.optimizer.param_groups:
                        yield from group["params"]
                    for state in each.optimizer.state.values():
                        held = (value for value in state.values() if isinstance(value, Tensor))
                        yield from (value for value in held if value.device.type == here)
            case "frozen":
                return

    @property
    def _flat_memory(self) -> list[Any]:
        """Megatron's buffers, of which parameters and gradients are views."""
        buffers: list[Any] = self._ddp.buffers
        return [*buffers, *self._ddp.expert_parallel_buffers]

    # Weights

    def begin_save(self, folder: Path) -> None:
        """Begin a checkpoint from which any layout can continue, in a folder shared by all ranks.
        It holds what is trained so far; `finish_save` completes it."""
        self.finish_save(wait=True)
        self._writing = self._state.begin_save(folder, self.steps_done)

    def finish_save(self, wait: bool = False) -> bool:
        """Return whether the checkpoint is complete. `wait`: return when it is."""
        if self._writing is not None and self._writing.finish(wait=wait):
            self._writing = None
        return self._writing is None

    def save(self, folder: Path) -> None:
        """The whole of it, at once."""
        self.begin_save(folder)
        self.finish_save(wait=True)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint, of this layout or another."""
        self.steps_done = self._state.load(folder)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(HF name, whole tensor) of every weight, on every rank; see `gathered_tensors`."""
        return gathered_tensors(self.network, self.shape, self.layout)

    def close(self) -> None:
        """Give back what other processes keep for this one; the model cannot be used any more."""
        if self._writing is not None:
            self._writing.close()
        # A mixture keeps its last probabilities, whose graph in C++ holds this wrapper's hooks.
        vars(self._ddp).clear()

    def wait_for_export(self) -> None:
        """Until rank 0 wrote all weights. All ranks call it."""
        own = sum(parameter.nbytes for parameter in self.network.parameters())
        wait_for_all(transfer_bound_s(own * self.layout.world, _EXPORT_S))

    def gathered_weights(self) -> dict[str, Tensor]:
        """Copies on the CPU of all of them, on rank 0; empty elsewhere. All ranks call it."""
        is_first = self.layout.rank == 0  # the others, too, have to go through all tensors
        return {name: each.cpu().clone() for name, each in self.hf_tensors() if is_first}
