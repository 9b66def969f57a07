"""What a forward pass is for: from a pack's scores to a summed loss and its statistics.

Megatron divides the summed gradient of all micro-batches and ranks by their summed *units*; the
statistics are summed (or maximised) the same way. So everything here is a sum. Axis: R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.losses import supervised_loss
from engines.megatron.train.pack import FlatSequences, Pack


@dataclass(frozen=True, slots=True)
class MicroBatchLoss:
    """One micro-batch's contribution."""

    loss: Tensor
    """scalar with gradient: the weighted sum of its tokens' losses"""
    units: int
    """what the sum will be divided by, over all micro-batches and ranks"""
    sums: Tensor
    """[len(objective.sums)] float64"""
    peaks: Tensor
    """[len(objective.peaks)] float64, not negative"""


class Objective(Protocol):
    """A loss over packs; `sums` and `peaks` name the entries of its parts' statistics."""

    sums: ClassVar[tuple[str, ...]]
    peaks: ClassVar[tuple[str, ...]]

    @property
    def head(self) -> Mapping[str, Any]:
        """Return what the model's head is asked for: keywords of its `forward`."""
        ...

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        """Return what the loss of these sequences is divided by."""
        ...

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        """`scores` is what the model's head gave for the pack's trained rows."""
        ...


@dataclass(frozen=True, slots=True)
class SftObjective:
    """Mean negative log-likelihood over trained tokens."""

    weights: NDArray[np.float32] | None = None
    """factor of each sequence's loss, in the order of the FlatSequences; None: all 1"""

    sums: ClassVar[tuple[str, ...]] = ("loss", "units")
    peaks: ClassVar[tuple[str, ...]] = ()

    @property
    def head(self) -> Mapping[str, Any]:
        return {"temperature": 1.0}

    def total_units(self, flat: FlatSequences, indices: NDArray[np.int64]) -> int:
        return int(flat.num_trained[indices].sum())

    def part(self, pack: Pack, scores: Tensor) -> MicroBatchLoss:
        losses, units = supervised_loss(scores[0]), len(pack.targets)
        if self.weights is not None:
            losses = losses * losses.new_tensor(self.weights[pack.sequence_of_row])
        loss = losses.sum()
        return MicroBatchLoss(
            loss, units, stacked(loss, units), loss.new_zeros(0, dtype=torch.float64)
        )


def stacked(*values: Tensor | int) -> Tensor:
    """One float64 vector: statistics leave the device in a single transfer."""
    place: Sequence[Tensor] = [v for v in values if isinstance(v, Tensor)]
    return torch.stack(
        [
            v.detach().double() if isinstance(v, Tensor) else place[0].new_tensor(v).double()
            for v in values
        ]
    )


def training_step(objective: Objective) -> Any:
    """Megatron's forward step for an objective."""
    return partial(_forward, partial(_loss_of, objective), objective.head)


def scoring_step(head: Mapping[str, Any]) -> Any:
    """Make a step that returns what the model's head says of each token; nothing is learned."""
    return partial(_forward, _scores_of, head)


def _forward(
    finish: Any, head: Mapping[str, Any], packs: Iterator[Pack], model: Any
) -> tuple[Tensor, Any]:
    """The model's output for the next pack, and what to do with it on the last stage."""
    pack = next(packs)
    output = model(
        input_ids=pack.input_ids,
        position_ids=None,
        attention_mask=None,
        packed_seq_params=pack,
        **head,
    )
    return output, partial(finish, pack)


def _loss_of(
    objective: Objective, pack: Pack, scores: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    part = objective.part(pack, scores)
    units = torch.tensor(part.units, dtype=torch.int, device=part.loss.device)
    return part.loss, units, (part.sums, part.peaks)


def _scores_of(pack: Pack, scores: Tensor, non_loss_data: bool = True) -> Tensor:
    return scores
