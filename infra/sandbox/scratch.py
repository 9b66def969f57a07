"""A private folder that untrusted code fills, removed with any content."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

from infra.home import runtime_dir
from infra.sandbox.trees import remove


@contextmanager
def scratch_folder() -> Generator[str]:
    """A new empty folder, removed at the end; nobody writes to it any more by then."""
    folder = make_scratch_folder()
    try:
        yield folder
    finally:
        remove(folder)


def make_scratch_folder() -> str:
    """A new empty folder, which its process removes, or others once that is gone."""
    base = runtime_dir()  # the name tells `doctor --clean` whose it was
    prefix = f"{base.name}-{os.getpid()}-sandbox-"
    return tempfile.mkdtemp(prefix=prefix, dir=base.parent)
