"""Batches of any size: every rank keeps step, and the mean is over what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.megatron.spec import Parallel, TrainerSettings
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.megatron_ranks import Ranks, TrainerArgs

pytestmark = pytest.mark.integration

BATCHES = [[23], [40, 7, 31], [5, 9, 12, 18, 40, 3, 7, 31, 22, 2, 16], [40, 39]]
"""lengths; at most 48 tokens share a micro-batch"""


def train(trainer: Any) -> tuple[list[dict[str, float]], list[list[float]]]:
    metrics = trainer.sft_steps([sequences(lengths, i) for i, lengths in enumerate(BATCHES)])
    return metrics, trainer.logprobs([s.tokens for s in sequences(BATCHES[2])], 0.7)


def test_batches_of_any_size_train_two_ranks_like_one(ranks: Ranks, tmp_path: Path) -> None:
    make_model("qwen3", tmp_path)
    spec = TrainerSettings(micro_batch_tokens=48)
    alone, scored_alone = ranks.run(train, TrainerArgs(tmp_path, spec=spec))
    for layout in (Parallel(dp=2), Parallel(pp=2)):
        metrics, scored = ranks.run(train, TrainerArgs(tmp_path, layout, spec))
        for mine, theirs in zip(metrics, alone, strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
            assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
            assert mine["trained_tokens"] == theirs["trained_tokens"]
        for a, b in zip(scored, scored_alone, strict=True):
            assert a == pytest.approx(b, abs=1e-4)


def test_half_precision_trains_close_to_full(ranks: Ranks, tmp_path: Path) -> None:
    make_model("qwen2", tmp_path)
    full, _ = ranks.run(train, TrainerArgs(tmp_path))
    for layout in (Parallel(), Parallel(tp=2)):
        half, _ = ranks.run(train, TrainerArgs(tmp_path, layout, TrainerSettings(precision="bf16")))
        for mine, theirs in zip(half, full, strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.05)
