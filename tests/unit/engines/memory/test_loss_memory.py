"""The loss's memory by hand, with the constants of the code that takes it."""

from __future__ import annotations

import pytest

from engines.algorithms import linear_logprobs
from engines.memory import loss
from engines.memory.loss import loss_memory

pytestmark = pytest.mark.unit

MIB = 2**20


def test_the_constants_are_those_of_the_loss() -> None:
    assert loss.TILE_BYTES == linear_logprobs.TILE_BYTES
    assert loss.MIN_COLUMNS == linear_logprobs.MIN_COLUMNS
    assert loss.KEPT_BYTES == linear_logprobs.KEPT_BYTES


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
    """16384 rows in bf16: tiles of 1024 columns, 32 MiB each; 16 of them are 512 MiB."""
    memory = loss_memory(16384, 64, 151552, 2, "cuda")
    assert memory.kept == 512 * MIB
    # Logits, two buffers in fp32, and the gradient of the logits in bf16.
    assert memory.tiles == 16384 * 1024 * (2 + 4 + 4 + 2)
