"""A lock: one exact version a line, each with the Pythons that need it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from install.uv import InstallError

_TORCH = re.compile(r"torch==([^\s;]+)")


class Lock(NamedTuple):
    torch: str
    """the version"""
    without_torch: list[str]
    brings_cuda: bool
    """it lists the libraries that a CUDA build of torch needs"""


def read_lock(path: Path) -> Lock:
    if not path.is_file():
        raise InstallError(f"LOCK={path}: no such file; use locks/cpu.txt or locks/cuda.txt")
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    torch = [found.group(1) for line in lines if (found := _TORCH.match(line))]
    if len(torch) != 1:
        raise InstallError(f"{path} needs one line `torch==VERSION`, and has {len(torch)}")
    others = [line for line in lines if not _TORCH.match(line)]
    return Lock(torch[0], others, any(line.startswith("nvidia-") for line in lines))
