"""Whether a run is going on: whoever works on one holds its lock, which ends with the process.

Prefect alone cannot tell: after a power cut its database says that a flow runs. A run is worked on
by processes of one machine, the one of its home.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from infra.errors import InputError
from infra.home import home

GLANCE_SECONDS = 1.0
"""a lock that is only looked at is free again by then"""


@contextmanager
def working_on(run: str) -> Generator[None]:
    """Raises InputError while another process works on the run."""
    with _lock_file(run) as file:
        deadline = time.monotonic() + GLANCE_SECONDS
        while not _takes(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise InputError(
                    f"run {run} is going on already; follow it with `tributary resume {run}`"
                )
            time.sleep(0.05)
        yield


def is_going(run: str) -> bool:
    """Whether a process of this machine works on the run now."""
    with _lock_file(run) as file:
        return not _takes(file, fcntl.LOCK_SH)


def _lock_file(run: str) -> IO[bytes]:
    path = home() / "runs" / f"{run}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


def _takes(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
