"""One rank of a reward model: a value head on a policy's trunk, read after an answer's last token.

The head has no bias: of an answer's reward only differences are learned, and models for sequence
classification have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.preference_losses import BradleyTerry, bradley_terry
from engines.algorithms.sequence_sums import sequence_sums
from engines.batching import Comparison, TokenSequence
from engines.megatron.hf.folder import HfWeights, write_head_folder
from engines.megatron.parallel import Layout
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.objectives import MicroBatchLoss, stacked
from engines.megatron.train.pack import FlatSequences, Pack
from engines.megatron.train.preference_trainer import Doubles
from engines.megatron.train.stopwatch import Stopwatch
from engines.megatron.train.training import Training


class RewardTrainer(Training):
    """This process's share of one reward model in training."""

    def __init__(
        self,
        spec: TrainerSettings,
        optimizer: Optimizer,
        parallel: Parallel,
        model: Path,
        seed: int,
        total_steps: int,
    ) -> None:
        """As `Training`; the head starts at zero, or is that of a classifier."""
        super().__init__(
            spec,
            optimizer,
            parallel,
            model,
            seed,
            total_steps,
            has_value_head=True,
            frozen=("output_layer.bias",),
        )

    def rewards(self, sequences: Sequence[TokenSequence]) -> list[float]:
        """Of each sequence. No update."""
        flat = _flat(sequences)
        return np.add.reduceat(self.read(flat, {}).astype(np.float64), flat.starts).tolist()

    def reward_steps(
        self, loss: BradleyTerry, batches: Sequence[Sequence[Comparison]]
    ) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._reward_step(loss, batch) for batch in batches]

    def _reward_step(self, loss: BradleyTerry, batch: Sequence[Comparison]) -> dict[str, float]:
        began = Stopwatch.start()
        flat = _flat([answer for each in batch for answer in each.answers], together=2)
        margins = np.array([each.margin for each in batch], np.float64)
        objective = RewardObjective(loss, self.layout, margins)
        stats = self.forward_backward(flat, np.arange(len(flat.lengths)), objective)
        norm = self.update()
        chosen, rejected = (stats.mean(name, "units") for name in ("chosen", "rejected"))
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            "accuracy": stats.mean("right", "units"),
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "margin": chosen - rejected,
            **self.rates(flat, began),
        }

    def export(self, folder: Path, source: Path) -> None:
        """Write a sequence classifier of one label, with the source's tokenizer; rank 0 writes."""
        tensors = self.gathered_weights()
        if tensors:
            del tensors["score.bias"]
            write_head_folder(
                folder, tensors, HfWeights(source), "SequenceClassification", "reward", whole=True
            )
        self.wait_for_export()


@dataclass(frozen=True, slots=True)
class RewardObjective:
    """Mean loss over pairs."""

    loss: BradleyTerry
    layout: Layout
    margins: Doubles
    """of each pair"""

    sums: ClassVar[tuple[str, ...]] = ("loss", "units", "right", "chosen", "rejected")
    peaks: ClassVar[tuple[str, ...]] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        return {}

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return len(indices) // flat.together

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        values_R, cp = scores[0], self.layout.parallel.cp
        peaks = values_R.new_zeros(0, dtype=torch.float64)
        if not pack.num_sequences:
            nothing = values_R.sum()
            return MicroBatchLoss(nothing, 0, stacked(nothing, 0, 0, 0, 0), peaks)
        numbers = pack.sequences
        segment_R = torch.from_numpy(pack.segment_of_row).to(values_R.device)
        group = self.layout.cp_group if cp > 1 else None
        rewards_A = sequence_sums(values_R.double(), segment_R, len(numbers), group=group)
        margins_P = torch.from_numpy(self.margins[numbers[0::2] // 2]).to(values_R.device)
        compared = bradley_terry(rewards_A, margins_P, self.loss)
        # Context-parallel ranks share each sequence and come to the same loss: each has its part.
        total = compared.losses_P.sum()
        units = len(compared.losses_P)
        right = compared.is_right_P.sum()
        sums = stacked(total, units, right, rewards_A[0::2].sum(), rewards_A[1::2].sum()) / cp
        return MicroBatchLoss(
            (total / cp).float(), units if self.layout.cp_rank == 0 else 0, sums, peaks
        )


def _flat(sequences: Sequence[TokenSequence], *, together: int = 1) -> FlatSequences:
    """With one more token behind each, which nothing sees: the head is read where it would be
    predicted, which is after the last token."""
    return FlatSequences.of(
        [[*s.tokens, s.tokens[-1]] for s in sequences],
        [[*[0] * len(s.tokens), 1] for s in sequences],
        together=together,
    )
