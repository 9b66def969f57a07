"""The folder that a job works in: locked while the job lives, so that others can tell it from one
that a killed job left.

    HOME/work/<job>/        what is not in the store yet: an artifact's files, checkpoints

Locks on files end with the process that holds them; they are taken at once, or waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from infra.home import home


@contextmanager
def work_folder(job: str) -> Generator[Path]:
    """The job's folder, empty at first and removed at the end."""
    path = work_path(job)
    path.parent.mkdir(exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    draft = tempfile.mkdtemp(prefix=".", dir=path.parent)
    lock = os.open(draft, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system: then nobody removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(draft, path)  # under its name it was never without the lock
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def work_path(job: str) -> Path:
    return home() / "work" / job


def abandoned_work() -> list[Path]:
    """Folders of jobs that were killed."""
    folder = home() / "work"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("[!.]*") if _is_abandoned(path))


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:  # its job has just removed it
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(lock)


def takes_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether the lock is this process's now; another one may hold it."""
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
