"""What the host says of its GPU, by itself and through torch, and what is compiled and preloaded
on it: everything that a stage takes for granted before its first step."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from infra.cuda import (
    compile_problem,
    gpu_name,
    gpu_sizes,
    gpu_uuid,
    let_hooks_find_the_runtime,
    packaged_toolkit,
    used_bytes,
)
from tests.programs.bench.rows import Row

GB = 1e9
SLEEPING_BYTES = 10_000_000_000
RUN_S = 120
_HOOK = "torch_memory_saver_hook_mode_preload"


def facts() -> list[Row]:
    """The driver's answers against torch's, and a kernel that is compiled."""
    torch.zeros(1, device="cuda")
    there = torch.cuda.get_device_properties(0)
    uuid = float(gpu_uuid(0) == str(there.uuid))
    sizes = [abs(size / there.total_memory - 1) for size in gpu_sizes()[:1]]
    began = time.perf_counter()
    problem = compile_problem()
    seconds = time.perf_counter() - began
    note = f"{gpu_name()}, torch {torch.__version__}, toolkit of packages {packaged_toolkit()}"
    return [
        Row("driver: its GPU is torch's", uuid, "share", 1.0, note=note),
        Row("driver: size, against torch's", max(sizes, default=1), "relative", 0.06, True, note),
        Row("driver: what a process holds at first", used_bytes(0) / GB, "GB", note=note),
        Row("a kernel compiles", float(not problem), "share", 1.0, note=problem or "nvcc and g++"),
        Row("a kernel compiles in", seconds, "s", note=note),
    ]


def memory_saver() -> list[Row]:
    """The hook through which a server sleeps: 10 GB that the device gets back and again."""
    let_hooks_find_the_runtime()
    spec = find_spec("torch_memory_saver")
    assert spec is not None
    assert spec.origin is not None
    major = str(torch.version.cuda).partition(".")[0]
    (hook,) = Path(spec.origin).parents[1].glob(f"{_HOOK}_cu{major}*.so")
    environment = os.environ | {"LD_PRELOAD": str(hook)}
    command = [sys.executable, "-m", __spec__.name]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=RUN_S
    )
    found = json.loads(done.stdout.splitlines()[-1])
    note = f"{SLEEPING_BYTES / GB:.0f} GB, of which a tenth is kept in host memory"
    return [
        Row("memory saver: given back", found["given_back"], "share", 0.95, note=note),
        Row("memory saver: kept bits are equal", found["equal"], "share", 1.0, note=note),
        Row("memory saver: pause", found["pause"], "s", note=note),
        Row("memory saver: resume", found["resume"], "s", note=note),
    ]


def _sleep_and_wake() -> None:
    torch_memory_saver: Any = importlib.import_module("torch_memory_saver").torch_memory_saver

    parts: dict[str, torch.Tensor] = {}
    for tag, share, kept in (("weights", 0.1, True), ("cache", 0.9, False)):
        with torch_memory_saver.region(tag, enable_cpu_backup=kept):
            num_bytes = int(SLEEPING_BYTES * share)
            parts[tag] = torch.empty(num_bytes, dtype=torch.uint8, device="cuda").random_()
    wanted = int(parts["weights"].long().sum())
    torch.cuda.synchronize()
    before, began = used_bytes(0), time.perf_counter()
    torch_memory_saver.pause("weights")
    torch_memory_saver.pause("cache")
    torch.cuda.synchronize()
    pause, given_back = time.perf_counter() - began, before - used_bytes(0)
    began = time.perf_counter()
    torch_memory_saver.resume("weights")
    torch_memory_saver.resume("cache")
    torch.cuda.synchronize()
    found = {
        "given_back": given_back / SLEEPING_BYTES,
        "pause": pause,
        "resume": time.perf_counter() - began,
        "equal": float(int(parts["weights"].long().sum()) == wanted),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    _sleep_and_wake()
