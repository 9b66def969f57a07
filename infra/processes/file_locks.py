"""Locks on files, which end with the process that holds them: taken at once, or waited for."""

from __future__ import annotations

import fcntl
import time
from typing import IO


def takes_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock is this process's now; another one may hold it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def takes_lock_within(file: IO[str], seconds: float) -> bool:
    """Wait for the lock, so long at most."""
    deadline = time.monotonic() + seconds
    while not takes_lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
