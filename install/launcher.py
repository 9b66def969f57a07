"""The command without a path: a link in the user's own folder of programs, or the line to type."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def put_launcher(program: Path, environ: Mapping[str, str]) -> str:
    """Link `program` in ~/.local/bin if the shell looks there; -> what to tell the user.

    A program of that name that is not this one is left alone: another clone's goes first.
    """
    program = program.absolute()
    path = environ.get("PATH", "")
    folder = Path(environ.get("HOME") or os.path.expanduser("~")) / ".local" / "bin"
    link = folder / program.name
    if str(folder) in path.split(os.pathsep) and _is_free(link):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(program)
        except OSError:
            pass  # a folder that cannot be written: the line below helps there too
    found = shutil.which(program.name, path=path)
    if found and Path(found).resolve() == program.resolve():
        return f"type `{program.name} doctor` next; the command is {found}"
    return f"type this once in each shell: export PATH={program.parent}:$PATH"


def _is_free(link: Path) -> bool:
    """Whether nothing is there, or a link to an installation that is gone."""
    return not os.path.lexists(link) or (link.is_symlink() and not link.exists())
