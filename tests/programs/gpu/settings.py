"""What the parts share: a model that fits the device, a trainer of it, sequences to train on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engines.batching import TokenSequence
from engines.megatron.parallel import one_rank
from engines.megatron.rl.trainer import RlTrainer
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from infra.cuda import has_cuda
from tests.programs.gpu.random_model import SMALL, TINY, Size

SLOW_LR = 1e-6
"""so that the last of several steps works on much the same numbers as the first"""


def size_here() -> Size:
    return SMALL if has_cuda() else TINY


@contextmanager
def trainer(
    model: Path,
    precision: Literal["fp32", "bf16"],
    megatron: dict[str, Any] | None = None,
    lr: float = SLOW_LR,
) -> Generator[RlTrainer]:
    """The only rank of a model, on this host's device."""
    settings = TrainerSettings(precision=precision, megatron=megatron or {})
    with one_rank():
        yield RlTrainer(settings, Optimizer(lr=lr), Parallel(), model, 0, 1_000_000)


def sequences(vocab: int, count: int, longest: int, seed: int = 0) -> list[TokenSequence]:
    """Random tokens with long-tailed lengths, all but each one's first trained."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(np.log(longest / 6), 1.0, count), 2, longest).astype(int)
    return [
        TokenSequence(draw.integers(0, vocab, length).tolist(), [0] + [1] * (length - 1))
        for length in lengths
    ]
