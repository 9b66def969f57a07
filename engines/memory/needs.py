"""What of a stage's settings the memory of its ranks depends on."""

from __future__ import annotations

from dataclasses import dataclass

from engines.megatron.spec import Parallel
from engines.memory.loss import Place
from engines.memory.recompute import NOTHING, Recompute

VALUE_BYTES = {"fp32": 4, "bf16": 2}
GRADIENT_BYTES = 4
"""gradients are summed in fp32, whatever the weights' type"""


@dataclass(frozen=True, slots=True)
class TrainerNeeds:
    layout: Parallel
    precision: str
    tokens: int
    """in a rank's micro-batch at most"""
    recompute: Recompute = NOTHING
    copies: int = 0
    """further sets of weights: one for the reference, one for each teacher"""
    place: Place = "cuda"

    @property
    def value_bytes(self) -> int:
        """Of a weight and of an activation."""
        return VALUE_BYTES[self.precision]
