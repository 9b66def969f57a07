"""How long a piece of a rank's work takes, by the clock and by the processor."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self


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
