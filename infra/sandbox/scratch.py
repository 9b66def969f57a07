"""A private folder that untrusted code fills: measured and removed with any content."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from infra.home import runtime_dir

BLOCK = 4096
"""bytes that the smallest file or folder counts for"""
DEEPEST = 64
_IMMEASURABLE = 1 << 62


@contextmanager
def scratch_folder() -> Generator[str]:
    """A new empty folder, removed at the end; nobody writes to it any more by then."""
    base = runtime_dir()  # the name tells `doctor --clean` whose it was
    prefix = f"{base.name}-{os.getpid()}-sandbox-"
    folder = tempfile.mkdtemp(prefix=prefix, dir=base.parent)
    try:
        yield folder
    finally:
        remove(folder)


def used(folder: str) -> int:
    """Bytes of the files below a folder that is being written to.

    Far more than any quota where folders are too deep to follow or cannot be read.
    """
    total = 0
    pending = [(folder, 0)]
    while pending:
        place, depth = pending.pop()
        if depth > DEEPEST:
            return _IMMEASURABLE
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    size, is_folder = _size(entry)
                    total += size
                    if is_folder:
                        pending.append((entry.path, depth + 1))
        except FileNotFoundError:
            continue
        except OSError:
            return _IMMEASURABLE
    return total


def remove(folder: str) -> None:
    """Remove a tree of any depth and any modes: each subfolder is first brought to the top."""
    os.chmod(folder, 0o700)
    # names that the code cannot have taken
    names = (f".{secrets.token_hex(16)}" for _ in itertools.count())
    while inner := [entry for entry in os.scandir(folder) if _clear(entry)]:
        for entry in inner:
            os.chmod(entry.path, 0o700)
            for child in [child for child in os.scandir(entry.path) if _clear(child)]:
                os.chmod(child.path, 0o700)  # a folder that moves gets another parent written
                os.rename(child.path, os.path.join(folder, next(names)))
            os.rmdir(entry.path)
    os.rmdir(folder)


def _clear(entry: os.DirEntry[str]) -> bool:
    """Unlinks what is no folder; True for a folder."""
    if entry.is_dir(follow_symlinks=False):
        return True
    os.unlink(entry.path)
    return False


def _size(entry: os.DirEntry[str]) -> tuple[int, bool]:
    with contextlib.suppress(FileNotFoundError):
        blocks = entry.stat(follow_symlinks=False).st_blocks * 512
        return max(BLOCK, blocks), entry.is_dir(follow_symlinks=False)
    return 0, False
