"""The environment: an interpreter of this machine, or one that uv fetches; and the command without
a path: a link in the user's own folder of programs, or the line to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from install.uv import InstallError

VERSIONS = ("3.11", "3.12", "3.13")
"""supported, the best tested first"""
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def create_environment(uv: Path, venv: Path) -> Path:
    """Return the environment's interpreter. One that exists is kept if its Python will do."""
    python = venv / "bin" / "python"
    if python.exists():
        version = _version_of(str(python))
        if version not in VERSIONS:
            told = f"{venv} has a Python {version or 'that does not start'}"
            raise InstallError(f"{told}: `make clean install` creates it again")
        return python
    chosen = _interpreter(uv)
    done = subprocess.run(
        [str(uv), "venv", "--quiet", "--no-project", "--python", chosen or VERSIONS[0], str(venv)]
    )
    if done.returncode != 0:
        told = f"{chosen} does not do" if chosen else "none is here and none could be fetched"
        raise InstallError(
            f"Tributary needs Python {VERSIONS[0]} to {VERSIONS[-1]}: {told}. "
            "Install one, or name it: `make install PYTHON=/path/to/python3.11`"
        )
    return python


def _interpreter(uv: Path) -> str:
    """The one that runs this, if it will do; else one that uv finds here; else ""."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" in VERSIONS:
        return sys.executable
    for version in VERSIONS:
        find = [str(uv), "python", "find", "--no-project", "--no-python-downloads", "--system"]
        found = subprocess.run([*find, version], capture_output=True, text=True)
        if found.returncode == 0 and _version_of(found.stdout.strip()) == version:
            return found.stdout.strip()
    return ""


def _version_of(python: str) -> str:
    try:
        asked = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True)
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


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
    """Return whether nothing is there, or a link to an installation that is gone."""
    return not os.path.lexists(link) or (link.is_symlink() and not link.exists())
