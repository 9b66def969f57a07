"""Whether this host computes on NVIDIA GPUs: the one answer for everything that depends on it."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/version")


@functools.cache
def has_cuda() -> bool:
    """Whether an NVIDIA device is usable; answers without importing torch.

    CUDA_VISIBLE_DEVICES set to nothing (or -1) makes a host count as one without.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")
    return not hidden and _DRIVER.exists()
