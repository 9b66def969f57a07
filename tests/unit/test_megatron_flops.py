"""FLOPs of sequences, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from engines.megatron.flops import sequence_flops
from engines.megatron.hf_config import ModelShape, model_shape

pytestmark = pytest.mark.unit


def shape(**sizes: int) -> ModelShape:
    config = {
        "model_type": "llama",
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 10,
    }
    return model_shape(config | sizes)


def test_weights_logits_and_attention_by_hand() -> None:
    # A layer: queries 4 x 4, keys and values 2 x 4 x 2, output 4 x 4, feed-forward 3 x 4 x 8: 144
    # weights; two layers 288. Three tokens: 864. Logits of two rows: 2 x 4 x 10 = 80. Attention:
    # 2 layers x 2 heads x 2 wide x 3 squared = 72. Six times 864 + 80 + 72.
    found = sequence_flops(shape(), np.array([3, 1]), np.array([2, 0]))
    assert found.tolist() == [6 * (864 + 80 + 72), 6 * (288 + 8)]


def test_attention_of_a_long_sequence_passes_no_integer_bound() -> None:
    large = shape(num_hidden_layers=128, num_attention_heads=128, hidden_size=16384)
    lengths = np.array([10_000_000])
    (found,) = sequence_flops(large, lengths, np.array([0])).tolist()
    attention = 6 * 128 * 16384 * 10_000_000**2
    assert attention > 2**63
    assert found == pytest.approx(attention + 6 * large.num_matmul_params * 10_000_000)
