"""What a forward pass is for: from a pack's scores to a summed loss and its statistics.

Megatron divides the summed gradient of all micro-batches and ranks by their summed *units*; the
statistics are summed (or maximised) the same way. So everything here is a sum. Axis: R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.algorithms.losses import supervised_loss
from engines.megatron.train.pack import Pack


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
        """What the model's head is asked for: keywords of its `forward`."""
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
