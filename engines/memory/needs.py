"""What of a stage's settings the memory of its ranks depends on."""

from __future__ import annotations

from dataclasses import dataclass

from engines.megatron.spec import Parallel
from engines.memory.loss import Place
from engines.memory.optimizer_state import IN_FP32, OptimizerState
from engines.memory.recompute import NOTHING, Recompute

VALUE_BYTES = {"fp32": 4, "bf16": 2}


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
    state: OptimizerState = IN_FP32

    @property
    def value_bytes(self) -> int:
        """Of a weight and of an activation."""
        return VALUE_BYTES[self.precision]
