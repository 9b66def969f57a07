"""Values that a layer keeps for its backward pass, and what that pass needs beside them.

By the layer of `engines/megatron/layers.py` in Megatron-core's plain spec: what each operation
saves was read off its backward; `tests/programs/bench/memory.py` compares it with real ranks.
All numbers are values of the trainer's type, per token of a rank's micro-batch; tensor-parallel
ranks share all of them out, as they share the sequence as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize

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


def kept_values(size: ModelSize, recompute: Recompute, cp: int) -> float:
    """Of one layer and token, until its backward pass."""
    hidden = size.hidden
    # A norm keeps its normalised input; the linear layer after it keeps the norm's output.
    norms = size.norms * hidden
    inputs = 2 * hidden
    mlp = 0 if "mlp" in recompute.modules else mlp_values(size)
    return norms + inputs + attention_values(size, recompute, cp) + size.queries + mlp


def attention_values(size: ModelSize, recompute: Recompute, cp: int) -> float:
    """Of a layer's attention, without its output, which the projection after it keeps."""
    queries, keys = size.queries, size.keys
    if size.latents:
        # Heads are put together anew, from what is rotated and what is not, so no product is kept.
        again = "core_attn" in recompute.modules
        return size.latents + queries + (2 if cp == 1 or again else 2 * cp + 1) * keys
    head_norms = queries + keys if size.has_head_norms else 0
    projected = queries + 2 * keys
    """queries, keys and values come from one product; a view of it keeps it whole"""
    if "core_attn" in recompute.modules:
        return head_norms + queries + keys + projected
    if cp > 1:
        # A sequence's two chunks r and 2cp-1-r of 2cp see r+1 and 2cp-r chunks of keys and values:
        # together cp + 1/2 times their own length.
        return head_norms + queries + (cp + 0.5) * 2 * keys
    return head_norms + queries + keys + projected


def mlp_values(size: ModelSize) -> float:
    """Of a feed-forward layer without its input: gate and up in one, silu of the gate, up with its
    offset (which is 0, but a sum of its own), their product.

    Each expert of a token takes a copy of the token and gives one back.
    """
    return 5 * size.ffn + 2 * size.experts_per_token * size.hidden


def working_values(size: ModelSize, recompute: Recompute) -> float:
    """The most that the backward pass of one layer makes beside what is kept, per token.

    That is in the feed-forward, where silu and up get their gradients: before them the product's
    gradient takes the product's place. Modules that are computed again have their values, too.
    """
    again = mlp_values(size) if "mlp" in recompute.modules else 0
    return size.hidden + 2 * size.ffn + again


def micro_batches_in_flight(layout: Parallel, stage: int) -> int:
    """Whose values a pipeline stage keeps at once (1F1B), in a step of enough micro-batches."""
    return layout.pp - stage
