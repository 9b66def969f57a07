"""A model folder as a person names it: a path, any fsspec URL (with `~` and `$VAR` in it), or a
model on a hub, `hf:org/name@revision`."""

from __future__ import annotations

import os
from pathlib import Path

from infra.hub import fsspec_url, is_hub_name
from infra.secret_references import plain_address


def expanded(folder: str) -> str:
    """What fsspec opens: `~` and environment variables filled in, a hub's revision made a commit.

    Raises InputError, StorageError for a model that the hub does not give."""
    if is_hub_name(folder):
        return fsspec_url(folder)
    return os.path.expanduser(os.path.expandvars(plain_address(folder)))


def local_folder(folder: str) -> Path | None:
    """Where the folder is on this machine; None for one that is elsewhere."""
    if is_hub_name(folder):
        return None
    path = expanded(folder)
    if path.startswith("file://"):
        return Path(path.removeprefix("file://"))
    return None if "://" in path else Path(path)


def beside(folder: str, recipe: Path) -> str:
    """A relative path made absolute: it is meant relative to the recipe's folder."""
    if "://" in folder or folder.startswith("$") or is_hub_name(folder):
        return folder
    # Links stay: in the cache of a hub they have the names, and what they lead to has none.
    return os.path.abspath(recipe / Path(folder).expanduser())
