"""One rank of a critic: a model that learns the value of each token's state, for GAE.

    samples -> values before the step -> returns -> mini-batches: clipped squared error, update

The value of a token is that of the state it was chosen in: of the tokens before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.losses import value_loss
from engines.megatron.hf.folder import HfWeights, write_head_folder
from engines.megatron.rl.rl_batch import RlBatch
from engines.megatron.spec import CriticSettings, Optimizer, Parallel, TrainerSettings
from engines.megatron.train.objectives import MicroBatchLoss, stacked
from engines.megatron.train.pack import FlatSequences, Pack
from engines.megatron.train.stopwatch import Stopwatch
from engines.megatron.train.training import StepStats, Training
from engines.step_inputs import StepInputs

Floats = NDArray[np.float32]


class CriticTrainer(Training):
    """This process's share of one critic in training."""

    def __init__(
        self,
        spec: TrainerSettings,
        optimizer: Optimizer,
        parallel: Parallel,
        model: Path,
        seed: int,
        total_steps: int,
        critic: CriticSettings,
    ) -> None:
        """As `Training`. `model` is a policy's folder, and the head starts at zero, or a folder
        that a critic exported."""
        super().__init__(
            spec,
            optimizer,
            parallel,
            model,
            seed,
            total_steps,
            has_value_head=True,
            frozen=(".self_attention.",) if critic.freeze_attention else (),
        )
        self._critic = critic

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
        objective = ValueObjective(values, returns, self._critic.clip)
        steps: list[StepStats] = []
        norms: list[float] = []
        for _ in range(self._critic.steps_per_policy_step):
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
    """How well values foretold returns, before the critic learned from them.

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
