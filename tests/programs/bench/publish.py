"""Weights from the trainer into one and two running servers, against a memcpy of the same bytes."""

from __future__ import annotations

import statistics

import torch

from engines.megatron.rl.trainer import RlTrainer
from engines.weights.transport import PublishReport
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
    reports = [_published(trainer, urls, version) for version in range(1, REPEATS + 2)][1:]
    seconds = statistics.median(report.seconds for report in reports)
    paused = statistics.median(report.pause_seconds for report in reports)
    to = f"{len(urls)} server{'s' * (len(urls) > 1)}"
    return [
        Row(
            f"weight publish to {to}",
            seconds,
            "s",
            note=f"{reports[0].bytes} bytes, median of {REPEATS}; most of it is the servers' own"
            " protocol and loading",
        ),
        Row(f"pause of generation for a publish to {to}", paused, "s"),
        Row(f"weight publish over memcpy, {to}", seconds / copying, "ratio"),
    ]


def _published(trainer: RlTrainer, urls: list[str], version: int) -> PublishReport:
    report = trainer.publish(urls, version)
    if report.refused:
        raise RuntimeError(f"a server did not take the weights: {report.refused}")
    return report


def _memcpy_seconds(trainer: RlTrainer) -> float:
    """Of the same tensors into memory that exists already."""
    source = [tensor.detach() for _, tensor in trainer.hf_tensors()]
    target = [torch.empty_like(tensor) for tensor in source]

    def copy() -> None:
        for a, b in zip(target, source, strict=True):
            a.copy_(b)

    copy()
    return statistics.median(timed(copy).wall for _ in range(REPEATS))
