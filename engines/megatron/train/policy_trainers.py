"""One rank of a policy in supervised training, or one that learns from which answers are better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.preference_losses import (
    Answers,
    PreferenceLoss,
    has_reference,
    is_paired,
    loss_function,
)
from engines.algorithms.sequence_sums import sequence_sums
from engines.batching import Comparison, TokenSequence
from engines.megatron.adapters import whole_adapters
from engines.megatron.hf.folder import HfWeights, write_adapters, write_folder
from engines.megatron.parallel import Layout
from engines.megatron.train.objectives import MicroBatchLoss, SftObjective, stacked
from engines.megatron.train.pack import FlatSequences, Pack
from engines.megatron.train.speed import Stopwatch
from engines.megatron.train.training import Training

Doubles = NDArray[np.float64]


class SftTrainer(Training):
    """This process's share of one policy: trained on what it is shown, scored, exported."""

    def sft_steps(self, batches: Sequence[Sequence[TokenSequence]]) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._sft_step(batch) for batch in batches]

    def _sft_step(self, batch: Sequence[TokenSequence]) -> dict[str, float]:
        began = Stopwatch.start()
        flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
        indices = np.arange(len(batch))
        stats = self.forward_backward(flat, indices, SftObjective(_weights(batch)))
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **self.rates(flat, began),
        }

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of every token given those before it, at this temperature.

        Each list is as long as its sequence; the first entry, which nothing predicts, is 0.
        """
        flat = FlatSequences.of(sequences, [[1] * len(s) for s in sequences])
        whole = torch.from_numpy(self.score(flat, temperature))
        return [values.tolist() for values in whole.split(flat.lengths.tolist())]

    def score(
        self,
        flat: FlatSequences,
        temperature: float | NDArray[np.float32],
        indices: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Logprob of every trained token, as flat as the tokens; 0 for the others. No update. The
        temperature is all sequences', or each one's own.

        With `indices`, of these sequences only.
        """
        return self.read(flat, {"temperature": temperature}, indices)

    def export(self, folder: Path, source: Path) -> None:
        """Write a HF folder like `source` with the current weights; rank 0 writes. Adapters are
        merged into them, and also in a folder of their own, as `peft` reads them."""
        tensors = self.gathered_weights()
        if tensors:
            weights = HfWeights(source)
            if self.shape.is_tied and "lm_head.weight" in weights.file_of:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
            write_folder(folder, tensors, weights, self.shape)
        if self.spec.lora is not None:
            adapters = whole_adapters(self.network, self.layout)
            if self.layout.rank == 0:
                write_adapters(folder / "adapter", adapters, self.spec.lora)
        self.wait_for_export()


def _weights(batch: Sequence[TokenSequence]) -> NDArray[np.float32] | None:
    """None where all count the same: then nothing is multiplied."""
    weights = np.array([sequence.weight for sequence in batch], np.float32)
    return None if (weights == 1).all() else weights


class PreferenceTrainer(SftTrainer):
    """This process's share of one policy: trained on comparisons, scored, exported."""

    def answer_logprobs(self, sequences: Sequence[TokenSequence]) -> list[float]:
        """Return for each sequence the sum over its trained tokens. No update."""
        return self._sums(_flat(sequences)).tolist()

    def preference_steps(
        self, loss: PreferenceLoss, batches: Sequence[Sequence[Comparison]]
    ) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._preference_step(loss, batch) for batch in batches]

    def _preference_step(
        self, loss: PreferenceLoss, batch: Sequence[Comparison]
    ) -> dict[str, float]:
        began = Stopwatch.start()
        sizes = [len(each.answers) for each in batch]
        flat = _flat([answer for each in batch for answer in each.answers], sizes)
        baseline = self._baseline(batch)
        objective = PreferenceObjective(
            loss,
            self.layout,
            flat.num_trained,
            _reference(loss, batch),
            _are_good(loss, batch),
            baseline or 0.0,
        )
        stats = self.forward_backward(flat, np.arange(len(flat.lengths)), objective)
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **_metrics(stats.sums, has_reference=has_reference(loss)),
            **({} if baseline is None else {"baseline": baseline}),
            **self.rates(flat, began),
        }

    def _baseline(self, batch: Sequence[Comparison]) -> float | None:
        """max(0, mean log ratio of the answers that belong to other rows); None without any."""
        others = [each.other for each in batch if each.other is not None]
        if not others:
            return None
        of_reference = np.array([each.reference[-1] for each in batch], np.float64)
        return max(float((self._sums(_flat(others)) - of_reference).mean()), 0.0)

    def _sums(self, flat: FlatSequences) -> Doubles:
        scored = self.score(flat, 1.0).astype(np.float64)
        return np.add.reduceat(scored, flat.starts)


@dataclass(frozen=True, slots=True)
class PreferenceObjective:
    """Mean loss over comparisons. Arrays are [A], in the order of the FlatSequences."""

    loss: PreferenceLoss
    layout: Layout
    num_trained: NDArray[np.int64]
    reference: Doubles
    are_good: NDArray[np.bool_]
    baseline: float

    sums: ClassVar[tuple[str, ...]] = (
        "loss", "units", "right",
        "good", "good_tokens", "good_reward", "good_logprob", "good_ratio",
        "bad", "bad_tokens", "bad_reward", "bad_logprob", "bad_ratio",
    )  # fmt: skip
    peaks: ClassVar[tuple[str, ...]] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        return {"temperature": 1.0}

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return len(flat.comparisons(indices))

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        logprobs_R = scores[0]
        peaks = logprobs_R.new_zeros(0, dtype=torch.float64)
        if not pack.num_sequences:
            nothing = logprobs_R.sum()
            return MicroBatchLoss(nothing, 0, stacked(nothing, *[0] * (len(self.sums) - 1)), peaks)
        answers = self._answers(pack, logprobs_R)
        compared = loss_function(self.loss)(answers)
        # Context-parallel ranks share each sequence and come to the same loss: each has its part.
        share = 1 / self.layout.parallel.cp
        loss = compared.losses_P.sum() * share
        units = len(compared.losses_P) if self.layout.cp_rank == 0 else 0
        sums = share * stacked(
            compared.losses_P.sum(),
            len(compared.losses_P),
            compared.is_right_P.sum(),
            *(
                values_A[are_A].sum()
                for are_A in (answers.is_good_A, ~answers.is_good_A)
                for values_A in (
                    torch.ones_like(answers.tokens_A),
                    answers.tokens_A,
                    compared.rewards_A,
                    answers.logprobs_A,
                    answers.ratios_A,
                )
            ),
        )
        return MicroBatchLoss(loss.float(), units, sums, peaks)

    def _answers(self, pack: Pack, logprobs_R: Tensor) -> Answers:
        place, numbers = logprobs_R.device, pack.sequences
        group = self.layout.cp_group if self.layout.parallel.cp > 1 else None
        segment_R = torch.from_numpy(pack.segment_of_row).to(place)
        sums_A = sequence_sums(logprobs_R.double(), segment_R, len(numbers), group=group)
        return Answers(
            sums_A,
            torch.from_numpy(self.reference[numbers]).to(place),
            torch.from_numpy(self.num_trained[numbers]).to(place).double(),
            torch.from_numpy(self.are_good[numbers]).to(place),
            self.baseline,
        )


def _flat(
    sequences: Sequence[TokenSequence], together: Sequence[int] | None = None
) -> FlatSequences:
    return FlatSequences.of(
        [s.tokens for s in sequences], [s.loss_mask for s in sequences], together=together
    )


def _reference(loss: PreferenceLoss, batch: Sequence[Comparison]) -> Doubles:
    """Return the reference's logprob of each answer; 0 where the loss has none."""
    if not has_reference(loss):
        return np.zeros(sum(len(each.answers) for each in batch))
    return np.array([of for each in batch for of in each.reference[: len(each.answers)]])


def _are_good(loss: PreferenceLoss, batch: Sequence[Comparison]) -> NDArray[np.bool_]:
    if is_paired(loss):
        return np.tile([True, False], len(batch))
    return np.array([each.is_good for each in batch])


def _metrics(sums: Mapping[str, float], *, has_reference: bool) -> dict[str, float]:
    """Means over the comparisons, and over the better and the worse answers. A batch without one of
    these has no metric of it."""
    found = {"accuracy": sums["right"] / max(sums["units"], 1.0)}
    for side, name in (("good", "chosen"), ("bad", "rejected")):
        if not sums[side]:
            continue
        found[f"{name}_reward"] = sums[f"{side}_reward"] / sums[side]
        found[f"{name}_logprob"] = sums[f"{side}_logprob"] / sums[f"{side}_tokens"]
        if has_reference:
            found[f"{name}_drift"] = sums[f"{side}_ratio"] / sums[f"{side}_tokens"]
    if sums["good"] and sums["bad"]:
        found["margin"] = found["chosen_reward"] - found["rejected_reward"]
    return found
