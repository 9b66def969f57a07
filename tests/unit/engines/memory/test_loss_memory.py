"""The loss's memory by hand."""

from __future__ import annotations

import pytest

from engines.memory import activations
from engines.memory.activations import loss_memory

pytestmark = pytest.mark.unit

MIB = 2**20


@pytest.mark.parametrize("rows", [1, 77, 12_470, 15_913, 16_384, 65_536])
@pytest.mark.parametrize("vocab", [100, 32_000, 49_152, 75_968, 128_256, 151_936, 262_208])
def test_rows_of_a_tile_on_a_gpu_begin_where_its_fast_products_need_them(
    rows: int, vocab: int
) -> None:
    """A tile of 1,020 or 1,019 columns took three to five times as long on an H100."""
    width = activations.tile_width(rows, vocab, "cuda")
    assert width % 128 == 0 or width == vocab
    assert min(vocab, 1024) <= width
    assert rows * (width - 128) * 4 <= 256 * MIB or width == 1024


def test_many_rows_on_a_cpu() -> None:
    """2048 rows in fp32: 8 MiB are 1024 columns, so a vocabulary of 8192 has 8 tiles. The gradient,
    8192 x 256, is as large as one tile (2048 x 1024), so 7 tiles are kept beside it."""
    memory = loss_memory(2048, 256, 8192, 4, "cpu")
    assert memory.rows == 2 * MIB
    assert memory.weight_gradient == 8 * MIB
    assert memory.kept == 7 * 8 * MIB
    assert memory.tiles == 3 * 8 * MIB
    assert memory.rows_gradient == 4 * MIB
    assert memory.backward == (2 + 8 + 56 + 24 + 4) * MIB
    assert memory.scoring == (2 + 24) * MIB


def test_few_rows_find_room_in_the_gradient() -> None:
    """8 rows: one tile has the whole vocabulary."""
    memory = loss_memory(8, 256, 8192, 4, "cpu")
    assert memory.kept == 0
    assert memory.tiles == 3 * 8 * 8192 * 4


def test_kept_logits_are_bounded() -> None:
    """16384 rows in bf16: tiles of 4096 columns, 128 MiB each; 4 of them are 512 MiB."""
    memory = loss_memory(16384, 64, 151552, 2, "cuda")
    assert memory.kept == 512 * MIB
    # Logits, two buffers in fp32, and the gradient of the logits in bf16.
    assert memory.tiles == 16384 * 4096 * (2 + 4 + 4 + 2)
