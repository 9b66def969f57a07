"""A folder that comes to be whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import InputError

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
