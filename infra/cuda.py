"""Whether this host computes on NVIDIA GPUs: the one answer for everything that depends on it."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia")
_ASK_S = 10.0
_NCCL = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
"""what SGLang turns off in its servers: members of one group must agree on them"""

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch's own variable, and its older name, which it reads where the other is not set"""
_EXACT_PINNED = "pinned_max_round_threshold_mb:1"


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What torch says of itself, which a lock and a version's tag may not know."""

    version: str
    cuda: str | None
    """the CUDA version that it was built for; None: a CPU build"""
    sees_gpu: bool


@functools.cache
def has_cuda() -> bool:
    """Whether an NVIDIA device is usable; answers without importing torch.

    CUDA_VISIBLE_DEVICES set to nothing (or -1) makes a host count as one without.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    return not hidden and (_DRIVER / "version").exists()


def has_driver_library() -> bool:
    """Whether the driver's library can be loaded, which some packages want when imported."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def nccl_environment() -> dict[str, str]:
    """Variables that ranks and servers need alike, or their groups do not come to be; a value that
    a person set for the stack stays, on both sides."""
    return {name: os.environ.get(name, "0") for name in _NCCL}


def allocator_environment() -> dict[str, str]:
    """Variables for a rank's process: torch would round each pinned block up to a power of two, and
    nearly twice a model's state could wait in host memory. Settings of a person stay."""
    name = next((name for name in _ALLOCATOR if os.environ.get(name)), _ALLOCATOR[0])
    theirs = os.environ.get(name, "")
    if _EXACT_PINNED.partition(":")[0] in theirs:
        return {}
    return {name: ",".join(filter(None, (theirs, _EXACT_PINNED)))}


def gpu_name() -> str:
    """The maker's name of the host's first GPU, as its driver tells it; empty without one."""
    for file in sorted(_DRIVER.glob("gpus/*/information"))[:1]:
        for line in file.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                return value.strip()
    return ""


@functools.cache
def gpu_sizes() -> tuple[int, ...]:
    """Memory in bytes of each GPU that this process may use; empty if it is not known.

    Asks the driver's own tool, which takes no memory of the devices.
    """
    if not has_cuda():
        return ()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    only = ["-i", chosen] if chosen else []
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", *only]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(int(line) << 20 for line in done.stdout.split() if line.isdigit())


def gpu_uuid(number: int) -> str:
    """The name of this process's GPU of that number, as torch writes it; empty if it is not known.

    Example: "6dd0a9c2-3f5c-1e65-8d2a-0b9c61a7f7d4". Asks the driver's own tool: a process that only
    wants to know must not take memory of the device.
    """
    return _asked(number, "uuid").removeprefix("GPU-")


def used_bytes(number: int) -> int:
    """What all processes together hold of this process's GPU of that number; 0 if not known."""
    text = _asked(number, "memory.used")
    return int(text) << 20 if text.isdigit() else 0


def _asked(number: int, what: str) -> str:
    """What the driver's own tool says of a GPU, without units; empty if it cannot."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = names[number] if number < len(names) and names[number] else str(number)
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def torch_build() -> TorchBuild:
    """Imports torch."""
    import torch

    return TorchBuild(torch.__version__, torch.version.cuda, torch.cuda.is_available())
