"""FLOPs of sequences, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.megatron import flops
from engines.megatron.flops import mfu, sequence_flops
from engines.megatron.hf.config import ModelShape, model_shape

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


def test_utilisation_is_of_the_measured_peak_and_never_above_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flops, "peak_flops", lambda dtype: 100.0)  # pyright: ignore[reportUnknownLambdaType]
    assert mfu(50.0, 2.0, torch.float32, ranks=1) == {"mfu": 0.25}
    assert mfu(50.0, 2.0, torch.float32, ranks=2) == {"mfu": 0.125}
    # Faster than the peak that was measured: the peak had been measured too low.
    assert mfu(300.0, 2.0, torch.float32, ranks=1) == {"mfu": 1.0}


def test_the_data_sheets_peak_is_another_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "peak_flops", lambda dtype: 100.0)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(flops, "stated_flops", lambda dtype: 400.0)  # pyright: ignore[reportUnknownLambdaType]
    assert mfu(100.0, 2.0, torch.float32, ranks=1) == {"mfu": 0.5, "mfu_stated": 0.125}


def test_a_cpus_peak_is_measured_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of the wall while the process computed for one: the peak is that of one."""
    now = {"cpu": 0.0}

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        now["cpu"] += 1.0
        return a

    monkeypatch.setattr(flops.torch, "mm", product)
    monkeypatch.setattr(flops.torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(flops.time, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(flops.time, "perf_counter", lambda: 2.0 * now["cpu"])
    flops.peak_flops.cache_clear()
    try:
        assert flops.peak_flops(torch.float32) == 2.0 * max(flops.PEAK_MATRICES["cpu"]) ** 3
    finally:
        flops.peak_flops.cache_clear()
