"""`tributary init`: a folder with a recipe and a domain to begin from."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from infra.errors import InputError

STARTER = Path(__file__).parents[1] / "starter"
FILES = ("recipe.yaml", "my_domain.py", "test_my_domain.py", "pytest.ini", "README.md")


def write_starter(folder: str, console: Console) -> int:
    """Write the starter's files, all or none, and say what to do next; -> exit code.

    Raises InputError where one of them exists already, or the folder cannot be written.
    """
    target = Path(folder).expanduser()
    present = [name for name in FILES if os.path.lexists(target / name)]
    if present:
        raise InputError(
            f"init {folder}: {', '.join(present)} exist{'s' if len(present) == 1 else ''} there"
            " already, and init overwrites nothing; give another folder"
        )
    _write(target)
    shown = shlex.quote(folder)
    recipe = shlex.quote(str(Path(folder) / "recipe.yaml"))
    for line in (
        f"wrote {', '.join(FILES)} in {folder}",
        "next:",
        f"  {_pytest()} {shown}",
        f"  tributary check {recipe}",
        "  tributary up",
        f"  tributary run {recipe}",
        f"then change the first part of {Path(folder) / 'my_domain.py'}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _pytest() -> str:
    """As it can be typed in this shell: with its path, if only the command is on PATH."""
    found, ours = shutil.which("pytest"), Path(sys.executable).with_name("pytest")
    return "pytest" if found and Path(found).samefile(ours) else str(ours)


def _write(target: Path) -> None:
    written: list[Path] = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            content = (STARTER / name).read_bytes()
            with (target / name).open("xb") as file:
                written.append(target / name)
                file.write(content)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        raise InputError(
            f"init: {error.filename or target}: {error.strerror}; give a folder that you may"
            " write to"
        ) from None
