"""Memory of the logprobs that are computed straight from hidden states, and the sizes they keep to.

`engines/algorithms/linear_logprobs.py` walks the vocabulary in tiles, of which three lie in work
(of fused kernels at most two), and keeps some logits for the backward pass. R rows, V this rank's
part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """Of `rows` trained rows; `vocab` is the rank's part, `value_bytes` of the trainer's type.
    `trains_weight`: whether the output layer's weight gets a gradient."""
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
    """How many tiles' logits find room in the memory of the weight's gradient."""
    found = 0
    for start in range(0, vocab, width):
        last = max(rows, hidden) * start + rows * (min(start + width, vocab) - start)
        if last <= vocab * hidden:
            found += 1
    return found
