"""From hidden states to gradients of hidden and weight: fused logprobs against log_softmax.

Each path is measured in processes of its own, so that its peak memory is its own: python -m
tests.programs.bench.loss_path PATH. The plain path gives logprobs only; ours gives entropies too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tests.programs.bench.process_memory import process_memory
from tests.programs.bench.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

ROWS, HIDDEN, VOCAB = 2000, 1024, 150_000
PAIRS = 3
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    cpu_seconds: float
    peak: int
    """bytes above the inputs"""


def measure() -> list[Row]:
    """Alternate both, so that a slow moment meets both."""
    pairs = [(_in_a_process("plain"), _in_a_process("fused")) for _ in range(PAIRS)]
    by_wall = statistics.median(ours.seconds / plain.seconds for plain, ours in pairs)
    by_cpu = statistics.median(ours.cpu_seconds / plain.cpu_seconds for plain, ours in pairs)
    memory = statistics.median(ours.peak / plain.peak for plain, ours in pairs)
    plain, ours = pairs[-1]
    sizes = f"{ROWS} tokens, hidden {HIDDEN}, vocabulary {VOCAB}, fp32; median of {PAIRS} pairs"
    return [
        Row(
            "loss path time over plain log_softmax",
            by_wall,
            "ratio",
            floor=1.1,
            at_most=True,
            note=f"{ours.seconds:.1f} s against {plain.seconds:.1f} s; by CPU seconds"
            f" {by_cpu:.2f}; {sizes}",
        ),
        Row(
            "loss path peak memory over plain log_softmax",
            memory,
            "ratio",
            floor=0.4,
            at_most=True,
            note=f"{ours.peak / MIB:.0f} MiB against {plain.peak / MIB:.0f} MiB above the inputs,"
            " gradients counted",
        ),
    ]


def _in_a_process(path: str) -> Measured:
    command = [sys.executable, "-m", "tests.programs.bench.loss_path", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return Measured(**json.loads(done.stdout))


def _measure_here(path: str) -> Measured:
    """A pass over some rows first: memory that it leaves with the allocator counts as well."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    weight = torch.empty(VOCAB, HIDDEN).normal_(std=0.02).requires_grad_()
    hidden = torch.empty(ROWS, HIDDEN).normal_().requires_grad_()
    labels, upstream = torch.randint(0, VOCAB, (ROWS,)), torch.randn(ROWS)
    before = process_memory("VmRSS")
    for rows in (ROWS // 8, ROWS):
        hidden.grad = weight.grad = None
        wall, cpu = time.perf_counter(), time.process_time()
        _forward_backward(path, hidden[:rows], weight, labels[:rows], upstream[:rows])
        spent = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(*spent, process_memory("VmHWM") - before)


def _forward_backward(
    path: str, hidden_RH: Tensor, weight_VH: Tensor, labels_R: Tensor, upstream_R: Tensor
) -> None:
    from engines.algorithms.linear_logprobs import linear_logprobs

    if path == "plain":
        # The logits are given up as soon as log_softmax has read them.
        logprobs_RV = (hidden_RH @ weight_VH.t()).log_softmax(-1)
        logprobs_R = logprobs_RV.gather(1, labels_R[:, None])[:, 0]
    else:
        logprobs_R, _ = linear_logprobs(hidden_RH, weight_VH, labels_R)
    (logprobs_R * upstream_R).sum().backward()


if __name__ == "__main__":
    print(json.dumps(asdict(_measure_here(sys.argv[1]))))
