"""Memory of processes: signs that one ran out of it, how much one holds, giving some back."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

import psutil

_SIGNS = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|(can't|cannot) allocate memory"
    r"|not enough memory|running low on memory|memory usage threshold|memory pressure"
    r"|std::bad_alloc",
    re.IGNORECASE,
)
_LINES, _LONGEST = 4, 700
_COUNTERS = Path("/proc/vmstat")
_M_ARENA_MAX = -8
"""of malloc.h"""


def tells_of_memory(text: str) -> bool:
    """Return whether an error's text, or the end of a log, says so: torch's, Python's, SGLang's,
    Ray's.
    """
    return _SIGNS.search(text) is not None


def memory_words(lines: Iterable[str]) -> str:
    """Return what lines of a log say of too little memory, from the first one that does; empty if
    none does. Ray gives its figures on the lines after it."""
    told = list(dropwhile(lambda line: not tells_of_memory(line), lines))
    return " ".join(" ".join(told[:_LINES]).split())[:_LONGEST]


def is_memory_error(error: BaseException) -> bool:
    """Return whether an exception, or one that it came from, is of too little memory."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or tells_of_memory(f"{type(seen).__name__}: {seen}"):
            return True
        seen = seen.__cause__
    return False


def kernel_kills() -> int:
    """Return how many processes of this machine the kernel has killed for memory since it started,
    those of a container's own limit among them; 0 where it does not tell."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def tree_bytes(pid: int) -> int:
    """Host memory that a process and those that it started hold for themselves, without what they
    share with others; 0 when it is gone."""
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_full_info().uss
    return total


def give_back_freed_memory() -> None:
    """Let the system have what this process freed and its allocator keeps between live blocks,
    which in a process of weeks only grows. Nothing on systems without glibc, whose call it is."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def use_one_heap() -> None:
    """Let all threads that this process will start take their memory from one heap of glibc's. By
    itself each of up to eight a core has a heap, which keeps the most that it ever needed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
