"""Checks of a recipe's store that leave nothing in it."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
from fsspec.core import split_protocol

from flows.explain import nearest
from flows.recipe import Recipe
from infra.home import home
from tasks.model_folder.location import expanded

_IMPOSSIBLE = (errno.ENOENT, errno.ENOTDIR)
"""below a file, or where the kernel alone makes files"""


def store_problems(recipe: Recipe) -> Iterator[str]:
    """An unknown kind of store, and a place where nobody can make a folder."""
    protocol, _ = _parts(recipe)
    known = fsspec.available_protocols()
    if protocol not in known:
        yield (
            f"storage.root: {recipe.storage.root}: no kind of store is called `{protocol}`"
            f"{nearest(protocol, known) or '; e.g. file:// or s3://'}"
        )
    fault = _fault(recipe)
    if fault is not None and fault.errno in _IMPOSSIBLE:
        yield f"{_told(recipe, fault)}; name a folder that can be made"


def store_cautions(recipe: Recipe) -> Iterator[str]:
    """A folder of this machine that can be looked at and not written: a run of this user would fail
    in it."""
    fault = _fault(recipe)
    if fault is not None and fault.errno not in _IMPOSSIBLE:
        yield _told(recipe, fault)


def _fault(recipe: Recipe) -> OSError | None:
    """Tried with a file that has no name, there or in the nearest folder above it that exists."""
    protocol, path = _parts(recipe)
    if protocol not in ("file", "local"):
        return None
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return None
    except OSError as error:
        error.filename = str(there)
        return error


def _told(recipe: Recipe, fault: OSError) -> str:
    reason = fault.strerror or str(fault)
    return f"storage.root: {recipe.storage.root} cannot be written ({fault.filename}: {reason})"


def _parts(recipe: Recipe) -> tuple[str, str]:
    """Protocol and path of the store's root."""
    root = expanded(recipe.storage.root.replace("$TRIBUTARY_HOME", str(home())))
    protocol, path = split_protocol(root)
    return protocol or "file", path
