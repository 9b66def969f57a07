"""One rank of a model with a value head on a policy's trunk: a reward model, or a critic for GAE.

A reward model is read after an answer's last token. The head has no bias: of an answer's reward
only differences are learned, and models for sequence classification have none. A critic learns the
value of each token's state:

    samples -> values before the step -> returns -> mini-batches: clipped squared error, update

The value of a token is that of the state it was chosen in: of the tokens before it.
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

from engines.algorithms.losses import value_loss
from engines.algorithms.parts import our_part
from engines.algorithms.reward_losses import Binary, Judged, Regression, RewardLoss
from engines.algorithms.sequence_sums import sequence_sums
from engines.batching import Comparison, TokenSequence
from engines.megatron.hf.folder import HfWeights, write_head_folder
from engines.megatron.parallel import Layout
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.spec import CriticSettings
from engines.megatron.train.objectives import MicroBatchLoss, stacked
from engines.megatron.train.pack import FlatSequences, Pack
from engines.megatron.train.policy_trainers import Doubles
from engines.megatron.train.speed import Stopwatch
from engines.megatron.train.training import StepStats, Training
from engines.step_inputs import StepInputs

Floats = NDArray[np.float32]


class RewardTrainer(Training):
    """This process's share of one reward model in training. Its head starts at zero, or is that of
    a classifier."""

    has_value_head = True

    def frozen_parts(self) -> Sequence[str]:
        return ("output_layer.bias",)

    def rewards(self, sequences: Sequence[TokenSequence]) -> list[float]:
        """Return the reward of each sequence. No update."""
        flat = _flat(sequences)
        return np.add.reduceat(self.read(flat, {}).astype(np.float64), flat.starts).tolist()

    def reward_steps(
        self, loss: RewardLoss, batches: Sequence[Sequence[Comparison]]
    ) -> list[dict[str, float]]:
        """One optimizer step for each batch, in order; returns the metrics of each."""
        return [self._reward_step(loss, batch) for batch in batches]

    def _reward_step(self, loss: RewardLoss, batch: Sequence[Comparison]) -> dict[str, float]:
        began = Stopwatch.start()
        sizes = [len(each.answers) for each in batch]
        flat = _flat([answer for each in batch for answer in each.answers], sizes)
        objective = RewardObjective(
            loss,
            self.layout,
            np.array([worth for each in batch for worth in each.worth], np.float64),
            np.array([each.margin for each in batch], np.float64),
            flat.comparison,
        )
        stats = self.forward_backward(flat, np.arange(len(flat.lengths)), objective)
        norm = self.update()
        return {
            "loss": stats.mean("loss", "units"),
            "grad_norm": norm,
            **_metrics(loss, stats),
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
    """Mean loss over comparisons. Arrays are in the order of the FlatSequences."""

    loss: RewardLoss
    layout: Layout
    worth: Doubles
    """of each answer, as its row says"""
    margins: Doubles
    """of each comparison"""
    comparison: NDArray[np.int64]
    """of each answer"""

    sums: ClassVar[tuple[str, ...]] = (
        "loss", "units", "right", "error", "good", "good_reward", "bad", "bad_reward",
    )  # fmt: skip
    peaks: ClassVar[tuple[str, ...]] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        return {}

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return len(flat.comparisons(indices))

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        values_R, cp = scores[0], self.layout.parallel.cp
        peaks = values_R.new_zeros(0, dtype=torch.float64)
        if not pack.num_sequences:
            nothing = values_R.sum()
            return MicroBatchLoss(nothing, 0, stacked(nothing, *[0] * (len(self.sums) - 1)), peaks)
        judged = self._judged(pack, values_R)
        settings = self.loss.model_dump(exclude={"kind"})
        found = our_part(self.loss.code)(judged, **settings)
        # Context-parallel ranks share each sequence and come to the same loss: each has its part.
        total = found.losses_P.sum()
        units = len(found.losses_P)
        sums = stacked(
            total,
            units,
            found.right_P.sum(),
            (judged.rewards_A - judged.worth_A).abs().sum(),
            *(
                value
                for are_A in _best_and_worst(self.loss, judged)
                for value in (are_A.sum(), judged.rewards_A[are_A].sum())
            ),
        )
        return MicroBatchLoss(
            (total / cp).float(), units if self.layout.cp_rank == 0 else 0, sums / cp, peaks
        )

    def _judged(self, pack: Pack, values_R: Tensor) -> Judged:
        place, numbers = values_R.device, pack.sequences
        group = self.layout.cp_group if self.layout.parallel.cp > 1 else None
        segment_R = torch.from_numpy(pack.segment_of_row).to(place)
        named = self.comparison[numbers]
        begins = np.diff(named, prepend=-1) != 0
        return Judged(
            sequence_sums(values_R.double(), segment_R, len(numbers), group=group),
            torch.from_numpy(self.worth[numbers]).to(place),
            torch.from_numpy(np.cumsum(begins) - 1).to(place),
            torch.from_numpy(self.margins[named[begins]]).to(place),
        )


def _best_and_worst(loss: RewardLoss, judged: Judged) -> tuple[Tensor, Tensor]:
    """bool: of each list or pair the best answers and the worst; of single ones the good and the
    bad; of scores none."""
    worth_A, comparison_A = judged.worth_A, judged.comparison_A
    if isinstance(loss, Regression):
        nothing_A = torch.zeros_like(worth_A).bool()
        return nothing_A, nothing_A
    if isinstance(loss, Binary):
        return worth_A > 0.5, worth_A < 0.5
    bounds_P = worth_A.new_zeros(len(judged.margins_P))
    best_P = bounds_P.index_reduce(0, comparison_A, worth_A, "amax", include_self=False)
    worst_P = bounds_P.index_reduce(0, comparison_A, worth_A, "amin", include_self=False)
    return worth_A == best_P[comparison_A], worth_A == worst_P[comparison_A]


def _metrics(loss: RewardLoss, stats: StepStats) -> dict[str, float]:
    """Means over comparisons, and over the best and the worst answers, where there are some."""
    if isinstance(loss, Regression):
        return {"error": stats.mean("error", "units")}
    found = {"accuracy": stats.mean("right", "units")}
    if stats.sums["good"]:
        found["chosen_reward"] = stats.mean("good_reward", "good")
    if stats.sums["bad"]:
        found["rejected_reward"] = stats.mean("bad_reward", "bad")
    if stats.sums["good"] and stats.sums["bad"]:
        found["margin"] = found["chosen_reward"] - found["rejected_reward"]
    return found


def _flat(
    sequences: Sequence[TokenSequence], together: Sequence[int] | None = None
) -> FlatSequences:
    """With one more token behind each, which nothing sees: the head is read where it would be
    predicted, which is after the last token."""
    return FlatSequences.of(
        [[*s.tokens, s.tokens[-1]] for s in sequences],
        [[*[0] * len(s.tokens), 1] for s in sequences],
        together=together,
    )


class CriticTrainer(Training):
    """This process's share of one critic in training. `model` is a policy's folder, and the head
    starts at zero, or a folder that a critic exported."""

    has_value_head = True

    def frozen_parts(self) -> Sequence[str]:
        return (".self_attention.",) if self._settings.freeze_attention else ()

    @property
    def _settings(self) -> CriticSettings:
        assert self.critic is not None
        return self.critic

    def values(self, inputs: StepInputs) -> Floats:
        """The present values of the trainable samples' tokens, end to end; 0 where none is needed.

        Raises TrainingStopped if no sample is trainable.
        """
        algorithm = inputs.algorithm
        return self.read(RlBatch.of(inputs.samples, algorithm).valued(algorithm), {})

    def critic_step(self, inputs: StepInputs) -> dict[str, float]:
        """Learn from one batch of rollouts, with the values that the critic gave before. Raises
        TrainingStopped."""
        began = Stopwatch.start()
        algorithm, values = inputs.algorithm, inputs.values
        if values is None:
            raise ValueError("a critic learns from the values that it gave before the step")
        batch = RlBatch.of(inputs.samples, algorithm)
        returns = batch.returns(algorithm, values, inputs.token_rewards)
        objective = ValueObjective(values, returns, self._settings.clip)
        steps: list[StepStats] = []
        norms: list[float] = []
        for _ in range(self._settings.steps_per_policy_step):
            for indices in batch.mini_batches(algorithm.mini_batches, self.seed, self.steps_done):
                steps.append(self.forward_backward(batch.learned, indices, objective))
                norms.append(self.update())
        places = batch.trained()
        rates = self.rates(batch.learned, began)
        return {
            "value_loss": sum(s.mean("loss", "units") for s in steps) / len(steps),
            "value_clip_fraction": sum(s.mean("clip", "units") for s in steps) / len(steps),
            "critic_grad_norm": sum(norms) / len(norms),
            "critic_lr": rates["lr"],
            "critic_seconds": rates["seconds"],
            "critic_cpu_seconds": rates["cpu_seconds"],
            **value_metrics(values[places], returns[places]),
        }

    def export(self, folder: Path, source: Path) -> None:
        """Write the critic as `write_head_folder` does; rank 0 writes."""
        tensors = self.gathered_weights()
        if tensors:
            write_head_folder(folder, tensors, HfWeights(source), "TokenClassification", "value")
        self.wait_for_export()


@dataclass(frozen=True, slots=True)
class ValueObjective:
    """Mean clipped squared error over a mini-batch's trained tokens."""

    old_values: Floats
    """[T] before the step"""
    returns: Floats
    """[T] what they should have been"""
    clip: float | None

    sums: ClassVar[tuple[str, ...]] = ("loss", "units", "clip")
    peaks: ClassVar[tuple[str, ...]] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        return {}

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return int(flat.num_trained[indices].sum())

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        values_R, units = scores[0], len(pack.targets)
        loss_R, is_clipped_R = value_loss(
            values_R,
            torch.from_numpy(self.old_values[pack.targets]).to(values_R.device),
            torch.from_numpy(self.returns[pack.targets]).to(values_R.device),
            clip=self.clip,
        )
        loss = loss_R.sum()
        sums = stacked(loss, units, is_clipped_R.sum())
        return MicroBatchLoss(loss, units, sums, loss.new_zeros(0, dtype=torch.float64))


def value_metrics(values_R: Floats, returns_R: Floats) -> dict[str, float]:
    """Return how well values foretold returns, before the critic learned from them.

    Explained variance is 1 - var(return - value) / var(return): 1 perfect, 0 no better than a
    constant; 0 also where all returns are equal.
    """
    values, returns = values_R.astype(np.float64), returns_R.astype(np.float64)
    spread = float(returns.var())
    explained = 1.0 - float((returns - values).var()) / spread if spread > 0 else 0.0
    return {
        "value_mean": float(values.mean()),
        "return_mean": float(returns.mean()),
        "explained_variance": explained,
    }
