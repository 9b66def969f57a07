"""How long a piece of a rank's work takes, by the clock and by the processor, and what share of
what the device could do at most the FLOPs of a step's model are: the MFU.

There are two peaks: what a large matrix product reaches on this very device, and what its maker
states, where we know it. The first is below the second, so its MFU is the kinder one.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Self

import torch

from engines.megatron import device

# Large enough to be bound by arithmetic, small enough to take well under a second on one core.
PEAK_MATRICES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
T = 1e12
_HOPPER = {torch.bfloat16: 989.4 * T, torch.float32: 66.9 * T}
# By a part of the device's name; the first that fits. Tensor cores without sparsity, fp32 without
# TF32, which we leave off.
DATA_SHEETS = {
    "H200": _HOPPER,
    "H100 PCIe": {torch.bfloat16: 756.0 * T, torch.float32: 51.2 * T},
    "H100 80GB HBM3": _HOPPER,
    "A100": {torch.bfloat16: 312.0 * T, torch.float32: 19.5 * T},
    "L40S": {torch.bfloat16: 362.0 * T, torch.float32: 91.6 * T},
}


@functools.cache
def peak_flops(dtype: torch.dtype) -> float:
    """FLOPs a second of a large matrix product on this process's device, the best of several.

    On a CPU by the processor's own clock: neighbours that take the core away would make the peak
    low and the MFU, whose steps they may spare, high.
    """
    place = device.device()
    clock = time.perf_counter if place.type == "cuda" else _seconds_a_thread
    best = 0.0
    for size in PEAK_MATRICES[place.type]:
        a = torch.randn(size, size, device=place).to(dtype)
        for _ in range(4):
            start = clock()
            torch.mm(a, a)
            if place.type == "cuda":
                torch.cuda.synchronize()
            best = max(best, 2.0 * size**3 / (clock() - start))
    return best


def _seconds_a_thread() -> float:
    """Processor seconds of this process, shared among the threads that a product runs on."""
    return time.process_time() / torch.get_num_threads()


def stated_flops(dtype: torch.dtype) -> float | None:
    """Dense FLOPs a second in the data sheet of this process's device; None where it is not known,
    as for every CPU: a virtual machine does not say how fast its cores are clocked."""
    if device.device().type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((by[dtype] for part, by in DATA_SHEETS.items() if part in name), None)


def mfu(flops: float, seconds: float, dtype: torch.dtype, ranks: int) -> dict[str, float]:
    """`mfu`: of the measured peak, `mfu_stated`: of the data sheet's, where it is known.

    A step can be no faster than the device: where it was faster than the measured peak, that had
    been measured too low, so the step's own rate takes its place.
    """
    rate = flops / seconds / ranks
    found = {"mfu": rate / max(rate, peak_flops(dtype))}
    stated = stated_flops(dtype)
    return found if stated is None else found | {"mfu_stated": rate / stated}


@dataclass(frozen=True, slots=True)
class Stopwatch:
    wall: float
    cpu: float
    """seconds of this process, over all its threads"""

    @classmethod
    def start(cls) -> Self:
        return cls(time.perf_counter(), time.process_time())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.wall

    @property
    def cpu_seconds(self) -> float:
        return time.process_time() - self.cpu
