"""MFU: of which peak, and never above one."""

from __future__ import annotations

import pytest
import torch

from engines.megatron.train import speed
from engines.megatron.train.speed import mfu

pytestmark = pytest.mark.unit


def test_utilisation_is_of_the_measured_peak_and_never_above_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "peak_flops", lambda dtype: 100.0)
    assert mfu(50.0, 2.0, torch.float32, ranks=1) == {"mfu": 0.25}
    assert mfu(50.0, 2.0, torch.float32, ranks=2) == {"mfu": 0.125}
    # Faster than the peak that was measured: the peak had been measured too low.
    assert mfu(300.0, 2.0, torch.float32, ranks=1) == {"mfu": 1.0}


def test_the_data_sheets_peak_is_another_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "peak_flops", lambda dtype: 100.0)
    monkeypatch.setattr(speed, "stated_flops", lambda dtype: 400.0)
    assert mfu(100.0, 2.0, torch.float32, ranks=1) == {"mfu": 0.5, "mfu_stated": 0.125}


def test_a_cpus_peak_is_measured_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of the wall while the process computed for one: the peak is that of one."""
    now = {"cpu": 0.0}

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        now["cpu"] += 1.0
        return a

    monkeypatch.setattr(speed.torch, "mm", product)
    monkeypatch.setattr(speed.torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(speed.time, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(speed.time, "perf_counter", lambda: 2.0 * now["cpu"])
    speed.peak_flops.cache_clear()
    try:
        assert speed.peak_flops(torch.float32) == 2.0 * max(speed.PEAK_MATRICES["cpu"]) ** 3
    finally:
        speed.peak_flops.cache_clear()
