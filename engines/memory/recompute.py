"""Which of a layer's values are computed again in the backward pass, as Megatron-core reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_OF_SELECTIVE = ("core_attn",)
"""`recompute_modules`, where it is not written"""


@dataclass(frozen=True, slots=True)
class Recompute:
    """`modules` of every layer, or `layers`: those of a stage that keep only their input."""

    modules: frozenset[str] = frozenset()
    method: str = ""
    """"uniform": every `num_layers`-th layer keeps its input; "block": the first `num_layers` do;
    empty: none"""
    num_layers: int = 0

    def whole_layers(self, layers: int) -> int:
        """Of so many layers, those that keep all their values, at the moment when most do."""
        if self.method == "uniform":
            return min(self.num_layers, layers)
        if self.method == "block":
            # The first layers come last: when one is computed again, the others' values are gone.
            return max(self.untouched_layers(layers), 1)
        return layers

    def untouched_layers(self, layers: int) -> int:
        """Of so many layers, those that keep all their values between the passes."""
        if self.method == "uniform":
            return 0
        return layers - min(self.num_layers, layers)

    def inputs_kept(self, layers: int) -> int:
        """Layers whose input alone is kept."""
        if self.method == "uniform":
            return -(-layers // max(self.num_layers, 1))
        return min(self.num_layers, layers)


NOTHING = Recompute()


def recompute_of(options: Mapping[str, Any]) -> Recompute:
    """From `trainer.megatron`. Example: {"recompute_granularity": "selective"}."""
    match options.get("recompute_granularity"):
        case "selective":
            return Recompute(frozenset(options.get("recompute_modules") or _OF_SELECTIVE))
        case "full":
            method = options.get("recompute_method") or "uniform"
            return Recompute(method=method, num_layers=options.get("recompute_num_layers") or 1)
        case _:
            return NOTHING
