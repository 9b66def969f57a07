"""A model folder as a person names it: a path or any fsspec URL, with `~` and `$VAR` in it."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(folder: str) -> str:
    """The name with `~` and environment variables filled in."""
    return os.path.expanduser(os.path.expandvars(folder))


def local_folder(folder: str) -> Path | None:
    """Where the folder is on this machine; None for one that is elsewhere."""
    path = expanded(folder)
    if path.startswith("file://"):
        return Path(path.removeprefix("file://"))
    return None if "://" in path else Path(path)


def beside(folder: str, recipe: Path) -> str:
    """A relative path made absolute: it is meant relative to the recipe's folder."""
    path = Path(folder).expanduser()
    if "://" in folder or folder.startswith("$"):
        return folder
    return str((recipe / path).resolve())
