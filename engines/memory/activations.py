"""Values that a layer keeps for its backward pass, and what that pass needs beside them.

By the layer of `engines/megatron/layers.py` in Megatron-core's plain spec: what each operation
saves was read off its backward; `tests/programs/bench/memory.py` compares it with real ranks.
All numbers are values of the trainer's type, per token of a rank's micro-batch; tensor-parallel
ranks share all of them out, as they share the sequence as well.

Logprobs that are computed straight from hidden states keep to other sizes:
`engines/algorithms/linear_logprobs.py` walks the vocabulary in tiles, of which three lie in work
(of fused kernels at most two), and keeps some logits for the backward pass. R rows, V this rank's
part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize

_OF_SELECTIVE = ("core_attn",)
"""`recompute_modules`, where it is not written"""
Place = Literal["cpu", "cuda"]
FP32 = 4
TILE_BYTES = {"cpu": 8 * 2**20, "cuda": 256 * 2**20}
"""of one tile in fp32, unless `MIN_COLUMNS` asks for more. Three are in work at once and fit a
processor's cache; a GPU wants larger products, and fewer launches and sums of hidden's gradient"""
COLUMNS_OF = {"cpu": 1, "cuda": 128}
"""what a tile's number of columns is a multiple of: where a row of half-precision logits does not
begin at a multiple of 16 bytes, cuBLAS takes kernels for old chips, several times slower"""
MIN_COLUMNS = 1024
"""narrower matrix products are slow"""
KEPT_BYTES = 512 * 2**20
"""of logits kept for the backward pass beside those that the weight's gradient has room for; the
others are computed again"""


@dataclass(frozen=True, slots=True)
class Recompute:
    """`modules` of every layer, or `layers`: those of a stage that keep only their input."""

    modules: frozenset[str] = frozenset()
    method: str = ""
    """"uniform": every `num_layers`-th layer keeps its input; "block": the first `num_layers` do;
    empty: none"""
    num_layers: int = 0

    def whole_layers(self, layers: int) -> int:
        """Count, of so many layers, those that keep all their values, at the moment when most
        do."""
        if self.method == "uniform":
            return min(self.num_layers, layers)
        if self.method == "block":
            # The first layers come last: when one is computed again, the others' values are gone.
            return max(self.untouched_layers(layers), 1)
        return layers

    def untouched_layers(self, layers: int) -> int:
        """Count, of so many layers, those that keep all their values between the passes."""
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
    """Count the values that are kept of one layer and token, until its backward pass."""
    hidden = size.hidden
    # A norm keeps its normalised input; the linear layer after it keeps the norm's output.
    norms = size.norms * hidden
    inputs = 2 * hidden
    mlp = 0 if "mlp" in recompute.modules else mlp_values(size)
    mixed = max(attention_values(size, recompute, cp) + size.queries, size.delta_kept)
    return norms + inputs + mixed + mlp


def attention_values(size: ModelSize, recompute: Recompute, cp: int) -> float:
    """Count the values of a layer's attention, without its output, which the projection after it
    keeps."""
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
    """Count the values of a feed-forward layer without its input: gate and up in one, silu of the
    gate, up with its offset (which is 0, but a sum of its own), their product. A clamped one keeps
    its gate and up twice, as the clamp takes and gives them, and the sigmoid apart.

    Each expert of a token takes a copy of the token and gives one back.
    """
    return size.values_of_width * size.ffn + 2 * size.experts_per_token * size.hidden


def working_values(size: ModelSize, recompute: Recompute) -> float:
    """The most that the backward pass of one layer makes beside what is kept, per token.

    That is in a delta net, or in the feed-forward, where silu and up get their gradients: before
    them the product's gradient takes the product's place. Modules that are computed again have
    their values, too.
    """
    again = mlp_values(size) if "mlp" in recompute.modules else 0
    return size.hidden + max(2 * size.ffn + again, size.delta_working)


def micro_batches_in_flight(layout: Parallel, stage: int) -> int:
    """Whose values a pipeline stage keeps at once (1F1B), in a step of enough micro-batches."""
    return layout.pp - stage


@dataclass(frozen=True, slots=True)
class LossMemory:
    """In bytes."""

    rows: int
    """the hidden states of the trained rows, until the backward pass"""
    weight_gradient: int
    """of the output layer: its memory holds logits meanwhile"""
    kept: int
    """further logits that wait for the backward pass"""
    tiles: int
    """that are in work"""
    rows_gradient: int

    @property
    def forward(self) -> int:
        return self.rows + self.weight_gradient + self.kept + self.tiles

    @property
    def backward(self) -> int:
        return self.forward + self.rows_gradient

    @property
    def scoring(self) -> int:
        """Without a backward pass nothing is kept."""
        return self.rows + self.tiles


def loss_memory(
    rows: int,
    hidden: int,
    vocab: int,
    value_bytes: int,
    place: Place,
    *,
    trains_weight: bool = True,
) -> LossMemory:
    """Compute the loss's memory of `rows` trained rows; `vocab` is the rank's part, `value_bytes`
    of the trainer's type. `trains_weight`: whether the output layer's weight gets a gradient."""
    width = tile_width(rows, vocab, place)
    num_tiles, tile = -(-vocab // width), rows * width
    in_gradient = _tiles_in_gradient(rows, hidden, vocab, width) if trains_weight else 0
    beside = min(num_tiles - in_gradient, KEPT_BYTES // (tile * value_bytes))
    # The gradient of a tile's logits in the trainer's type, where that is not fp32.
    narrowed = tile * value_bytes if value_bytes < FP32 else 0
    return LossMemory(
        rows=rows * hidden * value_bytes,
        weight_gradient=vocab * hidden * value_bytes if trains_weight else 0,
        kept=beside * tile * value_bytes,
        tiles=tile * (value_bytes + 2 * FP32) + narrowed,
        # Summed over the tiles in fp32, each tile's part beside it.
        rows_gradient=rows * hidden * (FP32 + value_bytes),
    )


def tile_width(rows: int, vocab: int, place: str) -> int:
    """Columns of every tile but the last, which may have fewer."""
    most = max(MIN_COLUMNS, TILE_BYTES[place] // (FP32 * max(rows, 1)))
    width = -(-vocab // -(-vocab // most))
    return min(-(-width // COLUMNS_OF[place]) * COLUMNS_OF[place], vocab)


def _tiles_in_gradient(rows: int, hidden: int, vocab: int, width: int) -> int:
    """Return how many tiles' logits find room in the memory of the weight's gradient."""
    found = 0
    for start in range(0, vocab, width):
        last = max(rows, hidden) * start + rows * (min(start + width, vocab) - start)
        if last <= vocab * hidden:
            found += 1
    return found
