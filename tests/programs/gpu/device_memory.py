"""A bucket of weights that another process opens by CUDA IPC, as a server of ours does."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from engines.megatron import device
from engines.weights.buckets import Bucket
from engines.weights.cuda_ipc import Opened, shared_on_device
from engines.weights.shared_memory import pickled, places_in
from tests.programs.bench.rows import Row

NUM_BYTES = 300_000_000
RUN_S = 300
_DEVICE = 6


def open_bucket() -> list[Row]:
    """300 MB, against a copy on the device."""
    place = device.device()
    flat = torch.randint(0, 256, (NUM_BYTES,), dtype=torch.uint8, device=place)
    torch.cuda.synchronize()
    copied = _seconds_of_a_copy(flat)
    bucket = Bucket(flat, [("weight", flat)])
    told = [
        pickled(
            {"flattened_tensor": Opened(*shared_on_device(flat)), "metadata": places_in(bucket)}
        )
        for _ in range(2)  # each may be opened once, as a server does with each bucket
    ]
    reader = [sys.executable, "-m", __spec__.name]
    done = subprocess.run(
        reader, input="\n".join(told), text=True, capture_output=True, check=True, timeout=RUN_S
    )
    total, first, later = done.stdout.split()
    equal = float(int(total) == _sum(flat))
    note = f"{NUM_BYTES} bytes; a copy on the device takes {copied * 1e3:.2f} ms"
    return [
        Row("CUDA IPC: another process reads the same bits", equal, "share", 1.0, note=note),
        Row("CUDA IPC: opened and copied, the first time", float(first), "s", note=note),
        Row("CUDA IPC: opened and copied again", float(later) / copied, "copies", 4, True, note),
    ]


def _seconds_of_a_copy(flat: Tensor) -> float:
    flat.clone()
    torch.cuda.synchronize()
    began = time.perf_counter()
    flat.clone()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _sum(flat: Tensor) -> int:
    """Changes with any byte, and with its place."""
    places = torch.arange(flat.numel(), device=flat.device) % 65_521 + 1
    return int((flat.long() * places).sum())


def _read() -> None:
    """The other process: open what stdin says, twice, copy it, tell what it held and how long each
    took."""
    torch.zeros(1, device=device.device())
    open_tensor: Any = reductions.rebuild_cuda_tensor

    def by_number(*needed: Any) -> Tensor:
        return open_tensor(*needed[:_DEVICE], torch.cuda.current_device(), *needed[_DEVICE + 1 :])

    reductions.rebuild_cuda_tensor = by_number
    told, again_told = (base64.b64decode(line) for line in sys.stdin.read().split())
    torch.empty(NUM_BYTES, dtype=torch.uint8, device=device.device())  # stays with the allocator
    torch.cuda.synchronize()
    began = time.perf_counter()
    record: dict[str, Any] = pickle.loads(told)
    copy = record["flattened_tensor"].clone()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    began = time.perf_counter()
    again: dict[str, Any] = pickle.loads(again_told)  # the driver keeps the memory open meanwhile
    copy.copy_(again["flattened_tensor"])
    torch.cuda.synchronize()
    print(_sum(copy), first, time.perf_counter() - began)


if __name__ == "__main__":
    _read()
