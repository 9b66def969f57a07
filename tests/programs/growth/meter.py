"""What a piece of work costs: processor time, memory above what was there, calls, bytes."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from infra.store.store import Store
from tests.programs.bench.process_memory import process_memory


class Figure(StrEnum):
    """What is counted."""

    CPU = "cpu_s"
    MEMORY = "memory"
    """bytes at most, above those before"""
    CALLS = "calls"
    """to the store, or what a row counts itself"""
    BYTES = "bytes"
    """on disk or on the wire, as a row counts them"""


FLOORS: Mapping[Figure, float] = {
    Figure.CPU: 0.02,
    Figure.MEMORY: 8e6,
    Figure.CALLS: 16,
    Figure.BYTES: 16e3,
}
"""what nobody notices: a smaller cost counts as this much, so that noise is no growth"""
_CALLS = ("read", "listdir", "exists", "size_of", "write", "create", "delete_tree")


class Meter:
    """Hands a row its folder, and keeps what the row's `with meter:` block costs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.figures: dict[Figure, float] = {}

    def apart(self, work: Callable[[], object]) -> None:
        """Do the work in a process of its own: its memory is not this one's."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"what was to be prepared in {self.folder} failed"

    @contextmanager
    def counting(self) -> Generator[None]:
        """Cost of the block; a block inside a loop adds to those before."""
        gc.collect()
        calls = [0]
        with _counted(calls):
            memory = _reset_peak()
            began = time.process_time()
            yield
            seconds = time.process_time() - began
            peak = process_memory("VmHWM") - memory
        self._add(Figure.CPU, seconds)
        self._add(Figure.CALLS, calls[0])
        self.figures[Figure.MEMORY] = max(peak, self.figures.get(Figure.MEMORY, 0))

    def count(self, figure: Figure, value: float) -> None:
        """A figure that the row counts itself, in place of the meter's."""
        self.figures[figure] = value

    def _add(self, figure: Figure, value: float) -> None:
        self.figures[figure] = self.figures.get(figure, 0) + value


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _reset_peak() -> int:
    """Have the kernel forget this process's highest memory; -> what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")
    return process_memory("VmRSS")


@contextmanager
def _counted(calls: list[int]) -> Generator[None]:
    """Count calls of every store."""
    before = {name: getattr(Store, name) for name in _CALLS}

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def one_more(*given: Any, **named: Any) -> Any:
            calls[0] += 1
            return call(*given, **named)

        return one_more

    for name, call in before.items():
        setattr(Store, name, counted(call))
    try:
        yield
    finally:
        for name, call in before.items():
            setattr(Store, name, call)
