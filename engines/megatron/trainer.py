"""One rank of a trainer: Megatron-core's model, optimizer and schedule behind a few methods.

All ranks of a layout call the same method with the same arguments at the same time; every rank
returns the same numbers, or raises the same error before any weight changed. How one step goes:

    sequences -> micro-batch plan -> packs -> forward, loss, backward (Megatron's schedule)
              -> statistics summed over ranks -> checks -> clip, AdamW step
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from engines.algorithms.spec import Algorithm
from engines.batching import TokenSequence, plan_micro_batches
from engines.megatron import device
from engines.megatron.checkpoint import TrainingState, seed_all
from engines.megatron.flops import peak_flops, sequence_flops
from engines.megatron.hf_config import model_shape, read_config
from engines.megatron.hf_folder import HfWeights, write_folder
from engines.megatron.hf_map import load_weights, whole_tensors
from engines.megatron.model import DTYPES, PolicyModel, build_model, transformer_config
from engines.megatron.objectives import Objective, SftObjective
from engines.megatron.optimizer import apply_step, build_optimizer, build_scheduler
from engines.megatron.options import check_layout
from engines.megatron.pack import FlatSequences, Pack, build_pack
from engines.megatron.parallel import current_layout, start_parallel, stop_parallel
from engines.megatron.reference import Reference
from engines.megatron.rl_step import train_on
from engines.megatron.spec import Optimizer, Parallel
from engines.megatron.spec import Trainer as TrainerSpec
from engines.megatron.teachers import Teachers
from engines.types import Sample
from infra.errors import TrainingStopped

if TYPE_CHECKING:
    from engines.weight_sync.report import PublishReport

__all__ = ["Trainer", "start_parallel", "stop_parallel"]


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of one forward and backward, summed over all micro-batches and ranks."""

    sums: dict[str, float]
    peaks: dict[str, float]

    def mean(self, name: str, per: str) -> float:
        return self.sums[name] / max(self.sums[per], 1.0)


class Trainer:
    """This process's share of one policy in training; `start_parallel` comes first."""

    def __init__(
        self,
        spec: TrainerSpec,
        optimizer: Optimizer,
        parallel: Parallel,
        model: Path,
        seed: int,
        total_steps: int,
    ) -> None:
        """Load the HF folder `model`. `total_steps` counts optimizer steps: the learning rate's
        decay ends there. Raises InputError for a folder, layout or option that cannot work."""
        config = read_config(model)
        check_layout(config, parallel, spec.megatron)
        self.spec, self.seed = spec, seed
        self.layout = current_layout(parallel)
        self.shape = model_shape(config)
        self.steps_done = 0
        """optimizer steps so far"""
        seed_all(seed)
        self.config = transformer_config(self.shape, self.layout, spec.precision, spec.megatron)
        self.policy = build_model(self.shape, self.config, self.layout)
        self._model = model
        self._load_model()
        self._reference: Reference | None = None
        self.teachers = Teachers()
        self._ddp = self._data_parallel(self.policy)
        self._optimizer_spec = optimizer
        self._optimizer = build_optimizer(self._ddp, optimizer, DTYPES[spec.precision])
        self._scheduler = build_scheduler(self._optimizer, optimizer, total_steps)
        self._run_schedule = get_forward_backward_func()

    def _load_model(self) -> None:
        load_weights(self.policy, self.shape, self.layout, HfWeights(self._model).read)

    def _data_parallel(self, policy: PolicyModel) -> DistributedDataParallel:
        half = self.config.bf16
        ddp = DistributedDataParallel(
            self.config,
            DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True),
            Float16Module(self.config, policy) if half else policy,
        )
        # Set only now: the schedule reads them, and building the model must not.
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.no_sync_func = ddp.no_sync
        return ddp

    # Training

    def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._sft_step(batch) for batch in batches]

    def _sft_step(self, batch: Sequence[TokenSequence]) -> dict[str, float]:
        start = time.perf_counter()
        flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
        indices = np.arange(len(batch))
        stats = self.forward_backward(flat, indices, SftObjective())
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **self.rates(flat, time.perf_counter() - start),
        }

    def rl_step(
        self,
        samples: Sequence[Sample],
        algorithm: Algorithm,
        gate: bool,
        version: int | None = None,
    ) -> dict[str, float]:
        """Train on one batch of rollouts: `algorithm.mini_batches` optimizer steps.

        What becomes of samples that cannot be trained on: `engines.algorithms.sample_rules`. With
        `gate`, the mean difference between trainer and engine logprobs, before any update, must
        not pass `algorithm.agreement_gate`. `version` is the policy's; None: the newest sample's.
        Raises AgreementError, TrainingStopped.
        """
        return train_on(self, samples, algorithm, gate=gate, version=version)

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
        packs = self._packs(flat, indices)
        parts = self._schedule(packs, _forward_of(objective))
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
        parallel = self.layout.parallel
        plan = plan_micro_batches(
            flat.lengths[indices].tolist(),
            # Context parallelism shares each pack, so that a rank holds this many tokens of it.
            self.spec.micro_batch_tokens * parallel.cp,
            parallel.dp,
            self._flops(flat)[indices].tolist(),
        )
        return [
            build_pack(flat, [int(indices[i]) for i in micro_batch], self.layout)
            for micro_batch in plan[self.layout.dp_rank]
        ]

    def _flops(self, flat: FlatSequences) -> NDArray[np.float64]:
        """Of each sequence, forward and backward."""
        return sequence_flops(self.shape, flat.lengths, flat.num_trained)

    def _schedule(
        self, packs: list[Pack], forward: Any, *, forward_only: bool = False
    ) -> list[Any]:
        """Run Megatron's schedule; returns what `forward` left on the last pipeline stage."""
        return self._run_schedule(
            forward_step_func=forward,
            data_iterator=iter(packs),
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
        counts = self.layout.speaks_for_loss
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

    def rates(self, flat: FlatSequences, seconds: float) -> dict[str, float]:
        tokens = int(flat.lengths.sum())
        flops = float(self._flops(flat).sum())
        peak = peak_flops(DTYPES[self.spec.precision]) * self.layout.world
        return {
            "lr": float(self._optimizer.param_groups[0]["lr"]),
            "tokens": float(tokens),
            "trained_tokens": float(flat.trained.sum()),
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "mfu": flops / seconds / peak,
        }

    # Scoring

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of every token given those before it, at this temperature.

        Each list is as long as its sequence; the first entry, which nothing predicts, is 0.
        """
        flat = FlatSequences.of(sequences, [[1] * len(s) for s in sequences])
        whole = torch.from_numpy(self.score(flat, temperature))
        return [values.tolist() for values in whole.split(flat.lengths.tolist())]

    @torch.no_grad()
    def score(
        self,
        flat: FlatSequences,
        temperature: float,
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Logprob of every trained token, as flat as the tokens; 0 for the others. No update.

        With `indices`, of these sequences only.
        """
        packs = self._packs(flat, np.arange(len(flat.lengths)) if indices is None else indices)
        forward = partial(_forward, _score_of, temperature, False)
        scored = self._schedule(packs, forward, forward_only=True)
        pairs = list(zip(packs, scored, strict=True)) if self.layout.is_last_stage else []
        return self.gathered(pairs, len(flat.tokens))

    def reference_score(self, flat: FlatSequences, temperature: float) -> NDArray[np.float32]:
        """The same under the weights that this Trainer was made with."""
        if self._reference is None:
            self._reference = Reference(self.policy, self._load_model)
        with self._reference.in_place(self.policy):
            return self.score(flat, temperature)

    def load_teachers(self, folders: Mapping[str, Path]) -> None:
        """Hold a frozen model for each domain, for a step with the distillation advantage."""
        self.teachers.load(self, folders)

    def gathered(self, scored: Sequence[tuple[Pack, Tensor]], total: int) -> NDArray[np.float32]:
        """All ranks' logprobs of their packs' trained tokens as one [total] array, everywhere."""
        whole = torch.zeros(total, device=device.device())
        if self.layout.speaks_for_loss:
            for pack, values in scored:
                whole[torch.from_numpy(pack.targets)] = values
        if self.layout.world > 1:
            dist.all_reduce(whole)
        return whole.cpu().numpy()

    # Weights

    @property
    def _state(self) -> TrainingState:
        return TrainingState(self._ddp, self._optimizer, self._scheduler, self.layout, self.seed)

    def save(self, folder: Path) -> None:
        """Write a checkpoint from which any layout can continue; a folder shared by all ranks."""
        self._state.save(folder, self.steps_done)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint, of this layout or another."""
        self.steps_done = self._state.load(folder)

    def publish(self, endpoints: Sequence[str], version: int) -> PublishReport | None:
        """Give the current weights to generation servers as `version`; rank 0 sends.

        Returns the report on rank 0, None elsewhere. Raises EngineError on rank 0 if a server
        refuses.
        """
        if self.layout.rank != 0:
            for _ in self.hf_tensors():
                pass
            return None
        from engines.weight_sync import publish

        return publish(self.hf_tensors(), endpoints, version)

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(HF name, whole tensor) of every weight, on every rank; see hf_map.whole_tensors."""
        return whole_tensors(self.policy, self.shape, self.layout)

    def export(self, folder: Path, source: Path) -> None:
        """Write a HF folder like `source` with the current weights; rank 0 writes."""
        if self.layout.rank != 0:
            for _ in self.hf_tensors():
                pass
        else:
            tensors = {name: tensor.cpu().clone() for name, tensor in self.hf_tensors()}
            weights = HfWeights(source)
            if self.shape.is_tied and "lm_head.weight" in weights.file_of:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
            write_folder(folder, tensors, weights)
        dist.barrier()


def _forward_of(objective: Objective) -> Any:
    """Megatron's forward step for an objective."""
    return partial(
        _forward, partial(_loss_of, objective), objective.temperature, objective.has_entropy_loss
    )


def _forward(
    finish: Any, temperature: float, has_entropy_loss: bool, packs: Iterator[Pack], model: Any
) -> tuple[Tensor, Any]:
    """The model's output for the next pack, and what to do with it on the last stage."""
    pack = next(packs)
    output = model(
        input_ids=pack.input_ids,
        position_ids=None,
        attention_mask=None,
        packed_seq_params=pack,
        temperature=temperature,
        has_entropy_loss=has_entropy_loss,
    )
    return output, partial(finish, pack)


def _loss_of(
    objective: Objective, pack: Pack, scores_2R: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    logprobs, entropies = scores_2R
    part = objective.part(pack, logprobs, entropies)
    units = torch.tensor(part.units, dtype=torch.int, device=part.loss.device)
    return part.loss, units, (part.sums, part.peaks)


def _score_of(pack: Pack, scores_2R: Tensor, non_loss_data: bool = True) -> Tensor:
    return scores_2R[0]
