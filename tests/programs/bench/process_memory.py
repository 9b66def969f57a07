"""How much memory this process holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def process_memory(what: Literal["VmRSS", "VmHWM"]) -> int:
    """Bytes: resident now (VmRSS), or at most so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")
