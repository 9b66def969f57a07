"""Weights from the trainer into one and two running servers, against a memcpy of the same bytes."""

from __future__ import annotations

import statistics

import torch

from engines.megatron.train.trainer import RlTrainer
from tests.programs.bench.clock import timed
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import Servers
from tests.programs.bench.workbench import Workbench

REPEATS = 15


def measure(bench: Workbench, engines: Servers) -> list[Row]:
    trainer = bench.trainer()
    _, urls = engines.serve(bench.model, 2)
    copying = _memcpy_seconds(trainer)
    return [row for count in (1, 2) for row in _rows(trainer, list(urls)[:count], copying)]


def _rows(trainer: RlTrainer, urls: list[str], copying: float) -> list[Row]:
    reports = [trainer.publish(urls, version) for version in range(1, REPEATS + 2)][1:]
    taken = [report for report in reports if report is not None]
    seconds = statistics.median(report.seconds for report in taken)
    copied = statistics.median(report.copy_seconds for report in taken)
    to = f"{len(urls)} server{'s' * (len(urls) > 1)}"
    return [
        Row(
            f"weight publish to {to}",
            seconds,
            "s",
            note=f"{taken[0].bytes} bytes, {1e3 * copied:.2f} ms of it copying; median of"
            f" {REPEATS}; the rest is the servers' own protocol and loading",
        ),
        Row(f"weight publish over memcpy, {to}", seconds / copying, "ratio"),
    ]


def _memcpy_seconds(trainer: RlTrainer) -> float:
    """Of the same tensors into memory that exists already."""
    source = [tensor.detach() for _, tensor in trainer.hf_tensors()]
    target = [torch.empty_like(tensor) for tensor in source]

    def copy() -> None:
        for a, b in zip(target, source, strict=True):
            a.copy_(b)

    copy()
    return statistics.median(timed(copy).wall for _ in range(REPEATS))
