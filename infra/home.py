"""Where a home keeps its things, and the short folder for its sockets."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent
"""the folder that holds our six packages"""
JOINED_HOME_VARIABLE = "TRIBUTARY_JOINED_HOME"
"""the home on a host that joined another one's stack: set there only, it stands above what a job's
environment, which is made on the head, says"""
_OURS = re.compile(r"tributary-[0-9a-f]{8}(-\d+)?")


def home() -> Path:
    """`$TRIBUTARY_HOME`, else `~/.tributary`; made if missing. All that lasts is under it.

    The default home belongs to the checkout whose stack was first started there; every other one
    has `~/.tributary/clones/<hash of its path>`, so that two clones never share a stack.
    """
    named = os.environ.get(JOINED_HOME_VARIABLE) or os.environ.get("TRIBUTARY_HOME")
    path = Path(named).expanduser() if named else _default_home(Path("~/.tributary").expanduser())
    path = path.resolve()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    """What names this home where its path would be too long. Example: 3f09c2b1"""
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
