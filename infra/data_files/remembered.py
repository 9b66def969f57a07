"""What a whole file told when it was read, kept in the home: an unchanged file is not read again,
neither by the next attempt at a stage nor by the next command.

A file counts as unchanged if its path, inode, size and both of its times (of its content and of its
inode) are the same; one elsewhere if its ETag is. Whoever changes bytes of a disk beneath the file
system is not noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from infra.home import home, write_own_file

UNUSED_S = 30 * 24 * 3600.0
"""what nobody read for so long is removed"""
_FRESH_NS = 2 * 10**9
"""a file that was written so lately may be written again without a later time"""


def state_of(path: str | Path) -> str:
    """Name the state of a file on this machine: another one after each change; empty where it
    changed so lately that nothing would tell of a further change."""
    found = os.stat(path)
    is_fresh = time.time_ns() - found.st_mtime_ns < _FRESH_NS
    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
    return "" if is_fresh else f"{found.st_ino} {found.st_size} {times}"


def recall(what: str, name: str, state: str) -> Any:
    """Give back what was kept; None where nothing was for this state of the file, or is damaged."""
    path = _path(what, name)
    try:
        kept_state, digest, told = path.read_text().split("\n", 2)
        os.utime(path)
        return json.loads(told) if (kept_state, digest) == (state, _digest(told)) else None
    except (OSError, ValueError):
        return None


def remember(what: str, name: str, state: str, told: Any) -> None:
    """Keep what the file of this name told in this state, which is not empty: as JSON, in place of
    what an earlier state of it told."""
    path = _path(what, name)
    with suppress(OSError):  # on a full or read-only disk it is read again
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        forget_unused(path.parent)
        text = json.dumps(told)
        write_own_file(path, f"{state}\n{_digest(text)}\n{text}")


def forget_unused(folder: Path) -> None:
    """Remove the files of a folder that nobody read for long."""
    for old in folder.iterdir():
        with suppress(FileNotFoundError):  # another process was first
            found = old.stat()
            if time.time() - max(found.st_mtime, found.st_atime) > UNUSED_S:
                old.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _path(what: str, name: str) -> Path:
    """`what`: whatever decides what is told, besides the file."""
    digest = hashlib.sha256(json.dumps([what, name]).encode()).hexdigest()
    return home() / "cache" / "files-read" / digest[:24]
