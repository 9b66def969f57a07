"""Batches of any size: every rank keeps step, and the mean is over what there is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from tasks.training_record import changed_share
from tests.integration.megatron.megatron_models import make_model, sequences
from tests.integration.megatron.megatron_ranks import Ranks, TrainerArgs

pytestmark = pytest.mark.integration

BATCHES = [[23], [40, 7, 31], [5, 9, 12, 18, 40, 3, 7, 31, 22, 2, 16], [40, 39]]
"""lengths; at most 48 tokens share a micro-batch"""


FEW: list[list[int]] = [[23], [9, 12], [7]]
"""in half precision, where a processor without instructions for it takes thirty times as long"""


def losses(trainer: Any) -> list[float]:
    steps = [sequences(lengths, i) for i, lengths in enumerate(FEW)]
    return [metrics["loss"] for metrics in trainer.sft_steps(steps)]


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
    full, spec = ranks.run(losses, TrainerArgs(tmp_path)), TrainerSettings(precision="bf16")
    half = ranks.run(losses, TrainerArgs(tmp_path, Parallel(tp=2), spec))
    assert half == pytest.approx(full, rel=0.05)


def train_and_export(trainer: Any, folder: Path, source: Path) -> float:
    (metrics,) = trainer.sft_steps([sequences(BATCHES[2])])
    trainer.export(folder, source)
    return metrics["grad_norm"]


@pytest.mark.parametrize(
    ("stored", "lr", "least", "most"),
    [("float32", 1e-3, 0.5, 1.0), ("bfloat16", 1e-9, 0.0, 0.001)],
)
def test_a_learning_rate_may_be_too_small_to_change_weights_as_they_are_stored(
    ranks: Ranks, tmp_path: Path, stored: str, lr: float, least: float, most: float
) -> None:
    import torch

    source, made = tmp_path / "source", tmp_path / "made"
    make_model("qwen3", source).to(getattr(torch, stored)).save_pretrained(source)
    arguments = TrainerArgs(source, optimizer=Optimizer(lr=lr))
    assert ranks.run(train_and_export, arguments, made, source) > 0
    assert least <= asyncio.run(changed_share(source, made)) <= most
