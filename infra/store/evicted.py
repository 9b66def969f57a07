"""What a host may keep of copies from elsewhere: so many bytes, the last used ones.

A copy is a folder below `$TRIBUTARY_HOME/cache`. Each process holds a lock on the copies that it
uses until it ends; what somebody uses is never removed, however much there is.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.errors import InputError
from infra.store.store import FileRecord, Store
from infra.store.verified import VerifiedFiles, verified_copy

LIMIT_VARIABLE = "TRIBUTARY_CACHE_GB"
DEFAULT_GB = 500.0
_log = logging.getLogger(__name__)
_held: dict[Path, int] = {}
"""open files whose locks end with this process"""


def limit_bytes() -> int:
    """Raises InputError for what is no number of gigabytes."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        gigabytes = float(text) if text else DEFAULT_GB
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes < float("inf"):
        raise InputError(f"{LIMIT_VARIABLE}={text}: give a number of gigabytes, e.g. 500")
    return int(gigabytes * 1e9)


def hold(copy: Path) -> None:
    """This process uses the copy from now on; it is the last used one."""
    with suppress(OSError):  # on a read-only disk nothing is removed either
        if copy not in _held:
            copy.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(_lock(copy), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            _held[copy] = lock
        os.utime(copy)


def cached_copy(
    store: Store, place: str, files: list[FileRecord], cache: Path, verified: VerifiedFiles
) -> Path:
    """Return a folder of the store on this machine, as `verified_copy` gives it; what is over the
    limit goes when something new has come."""
    copy = cache / place
    if store.is_local:
        return verified_copy(store, place, files, copy, verified)
    is_new = not copy.exists()
    hold(copy)
    found = verified_copy(store, place, files, copy, verified)
    if is_new:
        evict(cache, limit_bytes())
    return found


def evict(cache: Path, limit: int) -> int:
    """Remove copies that nobody uses, the longest unused first, until the others have at most
    `limit` bytes; -> bytes that are free now."""
    found = sorted(map(_measured, _copies(cache)), key=lambda each: each.used)
    over, freed = sum(each.size for each in found) - limit, 0
    for each in found:
        if freed >= over:
            break
        if _remove_unused(each.path):
            freed += each.size
            _log.info("removed a copy that was not used for long: %s", each.path)
    return freed


def _copies(cache: Path) -> Iterator[Path]:
    """Yield the copies of artifacts, but for those that are just fetched, and of models of other
    places."""
    yield from (path for path in cache.glob("artifacts/*/*/a*") if path.name[1:].isdigit())
    yield from (path for path in cache.glob("models/*") if path.is_dir())


@dataclass(frozen=True, slots=True)
class _Copy:
    path: Path
    size: int
    used: float
    """Unix time"""


def _measured(copy: Path) -> _Copy:
    size, used = 0, 0.0
    with suppress(FileNotFoundError):  # somebody else removed it
        used = copy.stat().st_mtime
        for file in copy.rglob("*"):
            size += file.stat().st_size if file.is_file() else 0
    return _Copy(copy, size, used)


def _remove_unused(copy: Path) -> bool:
    lock = os.open(_lock(copy), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(copy)
    except OSError:  # it is used, or is gone
        return False
    finally:
        os.close(lock)
    return True


def _lock(copy: Path) -> Path:
    """Beside the copy, and stays: whoever waits for a lock waits for this file."""
    return copy.with_name(f".{copy.name}.lock")
