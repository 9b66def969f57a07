"""How busy the machine of a job is, as curves of its MLflow run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress

import psutil

Log = Callable[[int, Mapping[str, float]], None]
"""takes a step and its values"""


@contextmanager
def measured(log: Log, every_seconds: float) -> Generator[None]:
    """Log the machine's load from now to the end of the block. A step is a Unix second, so that the
    points of a later attempt come after those of an earlier one. 0 seconds: nothing is logged."""
    if not every_seconds:
        yield
        return
    over = threading.Event()

    def measure() -> None:
        psutil.cpu_percent()  # of the time since the call before
        while not over.wait(every_seconds):
            with suppress(OSError, psutil.Error):  # a moment without figures, not the last one
                log(int(time.time()), load())

    thread = threading.Thread(target=measure, name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def load() -> dict[str, float]:
    """By the names under which MLflow shows its own."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / 1e6,
        "system/system_memory_usage_percentage": memory.percent,
        "system/disk_usage_percentage": disk.percent,
    }
