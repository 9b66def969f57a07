"""Where a home keeps its things, room for them on its disk, and the short folder for its sockets.

Names in /tmp are known to all users of a machine: whoever makes a folder of such a name first could
read what is put there, or put something else in its place. So each is looked at before it is used:
nobody else may have made it, read it or change it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from infra.errors import InputError

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""the folder that holds our six packages"""
JOINED_HOME_VARIABLE = "TRIBUTARY_JOINED_HOME"
"""the home on a host that joined another one's stack: set there only, it stands above what a job's
environment, which is made on the head, says"""
_OURS = re.compile(r"tributary-[0-9a-f]{8}(-\d+)?")
_MOST_SHARE = 0.9
"""of the free bytes of a disk that one thing from elsewhere may fill"""
_BLOCK = 4 << 20
_OTHERS = 0o077
_OTHERS_WRITE = 0o022
_KEY = "checksum"


def home() -> Path:
    """`$TRIBUTARY_HOME`, else `~/.tributary`; made if missing. All that lasts is under it. Raises
    InputError where it cannot be made.

    The default home belongs to the checkout whose stack was first started there; every other one
    has `~/.tributary/clones/<hash of its path>`, so that two clones never share a stack.
    """
    named = os.environ.get(JOINED_HOME_VARIABLE) or os.environ.get("TRIBUTARY_HOME")
    path = Path(named).expanduser() if named else _default_home(Path("~/.tributary").expanduser())
    try:
        path = path.resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the home {path} cannot be made: {error.strerror}; set TRIBUTARY_HOME to a folder that"
            " you may write to"
        ) from error
    return path


def _default_home(shared: Path) -> Path:
    """`shared`, unless another checkout that still exists has recorded its stack there."""
    try:
        owner = json.loads((shared / "stack.json").read_bytes()).get("source", "")
    except (OSError, ValueError, AttributeError):  # no record, or one that nobody can use
        owner = ""
    if owner in ("", str(SOURCE_ROOT)) or not Path(owner).is_dir():
        return shared
    return shared / "clones" / hashlib.sha256(str(SOURCE_ROOT).encode()).hexdigest()[:8]


def runtime_dir() -> Path:
    """Folder for this home's sockets: its name is short, for a socket's path ends at 107 bytes.

    Not made here; `stack.down` removes it. Example: /tmp/tributary-3f09c2b1
    """
    base = _temporary_base()
    # Ray's sockets are ~66 bytes deep below it; a long $TMPDIR would break them.
    return (base if len(str(base)) <= 20 else Path("/tmp")) / f"tributary-{home_tag()}"


def home_tag() -> str:
    """Return what names this home where its path would be too long. Example: 3f09c2b1"""
    return hashlib.sha256(str(home()).encode()).hexdigest()[:8]


def stack_temporary_dir() -> Path:
    """`$TMPDIR` of the stack's services and of what they start: who is killed leaves nothing
    outside of it. Not made here."""
    return runtime_dir() / "tmp"


def _temporary_base() -> Path:
    """Where the user wants temporary files: `$TMPDIR` of our processes is a folder below it."""
    folder = Path(tempfile.gettempdir())
    for inner in (folder, *folder.parents):
        if _OURS.fullmatch(inner.name):
            return inner.parent
    return folder


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


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file that others may read at any moment: they see the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.write_bytes(content if isinstance(content, bytes) else content.encode())
    draft.replace(path)


def write_own_file(path: Path, text: str) -> None:
    """Replace the file. At no moment may another user read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def close_to_others(folder: Path) -> None:
    """Let no other user look into the folder where it is ours; one of another user's, such as a
    volume that is mounted for us, is left as it is."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def room_in(folder: Path) -> int:
    """Bytes that one thing from elsewhere may fill of the folder's disk."""
    return int(shutil.disk_usage(folder).free * _MOST_SHARE)


def require_room(what: str, size: int, most: int) -> None:
    """Raises InputError for more bytes than it may have: a small archive can stand for any number
    of them."""
    if size > most:
        raise InputError(
            f"{what} has more than {most / 1e9:.3g} GB, which is the most that it may have here:"
            f" nothing may fill more than {_MOST_SHARE:.0%} of what is free on the disk, and no"
            " package has more than 64 GB. Free space, set TRIBUTARY_HOME to a larger disk, or give"
            " another source"
        )


def copy_within_room(source: BinaryIO, target: Path, what: str) -> None:
    """Copy to a new file, which may fill a part of its disk only. Raises InputError."""
    most, size = room_in(target.parent), 0
    with target.open("wb") as file:
        while block := source.read(_BLOCK):
            size += len(block)
            require_room(what, size, most)
            file.write(block)


_MODE = 0o755


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """A draft, which becomes `target` at the end of the block; after an error nothing of it is
    left. A `target` that exists must be empty, and stays the folder that it is: a shell may be in
    it, or something be mounted there.

    Raises InputError for a target that is taken or cannot be written.
    """
    target = target.resolve()
    require_free(target)
    exists = target.is_dir()
    place = target if exists else target.parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=place))
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error}; give another folder") from error
    try:
        yield draft
        draft.chmod(_MODE)
        _publish(draft, target, exists)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_free(target: Path) -> None:
    """Raises InputError for what is there and is no empty folder."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is not empty: give another folder")


def _publish(draft: Path, target: Path, exists: bool) -> None:
    moved: list[Path] = []
    try:
        if not exists:
            os.replace(draft, target)
        elif others := sorted(path.name for path in target.iterdir() if path != draft):
            raise FileExistsError(f"it has {others[0]}")
        else:
            for path in sorted(draft.iterdir()):
                os.rename(path, target / path.name)
                moved.append(target / path.name)
    except OSError as error:
        for path in moved:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise InputError(
            f"{target} changed while it was written: {error}; give another folder"
        ) from error


def seal(text: str) -> bytes:
    """Return a JSON object with a checksum of the rest of it as its last field."""
    fields: dict[str, Any] = json.loads(text)
    return json.dumps(fields | {_KEY: _checksum(fields)}, indent=1).encode()


def unseal(data: bytes) -> bytes:
    """The object's JSON without its checksum. Raises ValueError where they do not agree."""
    fields: Any = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"is a {type(fields).__name__}, not an object")
    found = fields.pop(_KEY, None)
    if found is None:
        raise ValueError("has no checksum")
    if found != _checksum(fields):
        raise ValueError("does not agree with its own checksum")
    return json.dumps(fields).encode()


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
