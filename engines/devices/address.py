"""Where a process runs, for error messages and for whoever has to meet it."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessAddress:
    """Example: ProcessAddress("10.0.0.7", 4711, "/tmp/ray/.../worker-4711.err")"""

    host: str
    pid: int
    log: str
    """file with the process's stderr on that host; empty where it has none"""


def address_of_this_actor() -> ProcessAddress:
    """Host, pid and log file of the calling Ray actor."""
    import ray.util

    try:
        log = os.readlink("/proc/self/fd/2")  # Ray points stderr at the worker's own file
    except OSError:
        log = ""
    return ProcessAddress(ray.util.get_node_ip_address(), os.getpid(), log if "/" in log else "")
