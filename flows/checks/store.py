"""Checks of a recipe's store that need no write to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
from fsspec.core import split_protocol

from flows.explain import nearest
from flows.recipe import Recipe
from infra.home import home
from tasks.model_folder.location import expanded


def store_problems(recipe: Recipe) -> Iterator[str]:
    """An unknown kind of store."""
    protocol, _ = _parts(recipe)
    known = fsspec.available_protocols()
    if protocol not in known:
        yield (
            f"storage.root: {recipe.storage.root}: no kind of store is called `{protocol}`"
            f"{nearest(protocol, known) or '; e.g. file:// or s3://'}"
        )


def store_cautions(recipe: Recipe) -> Iterator[str]:
    """A folder of this machine that can be looked at and not written: a run would fail in it.

    Tried with a file that has no name, there or in the nearest folder above it that exists.
    """
    protocol, path = _parts(recipe)
    if protocol not in ("file", "local"):
        return
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        reason = error.strerror or str(error)
        yield f"storage.root: {recipe.storage.root} cannot be written ({there}: {reason})"


def _parts(recipe: Recipe) -> tuple[str, str]:
    """Protocol and path of the store's root."""
    root = expanded(recipe.storage.root.replace("$TRIBUTARY_HOME", str(home())))
    protocol, path = split_protocol(root)
    return protocol or "file", path
