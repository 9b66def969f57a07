"""Folders and files that nobody else made, may read or may change.

Names in /tmp are known to all users of a machine: whoever makes a folder of such a name first could
read what is put there, or put something else in its place. So each is looked at before it is used.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from infra.errors import InputError

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def own_folder(path: Path) -> Path:
    """The folder, made if it is missing, which no other user may look into from now on.

    Raises InputError for a link, and for what another user made or could have changed.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"{path} cannot be made: {error}") from error
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is no folder, or a link to one; {_OTHERWISE}")
    if found.st_uid != os.geteuid():
        raise InputError(f"{path} belongs to another user (uid {found.st_uid}); {_OTHERWISE}")
    if found.st_mode & _OTHERS_WRITE:
        raise InputError(f"other users may write to {path}: nothing in it can be relied on. {_GO}")
    if found.st_mode & _OTHERS:
        path.chmod(0o700)
    return path


_GO = "Look at what it holds, remove it, and run the command again"
_OTHERWISE = (
    "nothing is written there. Have it removed, or set TMPDIR to a folder of yours with a short"
    " name (at most 20 characters) and run the command again"
)


def read_own_file(path: Path) -> str:
    """Raises FileNotFoundError, and InputError for one that others made, or may read or change."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} is not read: {error}. It must be a file of yours") from error
    with os.fdopen(opened) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise InputError(f"{path} is no file of yours (uid {found.st_uid}): remove it")
        if found.st_mode & _OTHERS:
            raise InputError(f"others may read or change {path}: chmod 600 {path}")
        return file.read()


def write_own_file(path: Path, text: str) -> None:
    """Replace the file. At no moment may another user read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def close_to_others(folder: Path) -> None:
    """Where the folder is ours, no other user may look into it; one of another user's, such as a
    volume that is mounted for us, is left as it is."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
