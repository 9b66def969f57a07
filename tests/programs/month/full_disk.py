"""A disk that is full from some moment on, as one process sees it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class FullDisk:
    """From `fill` on no file can be opened for writing, wherever this process tries to."""

    def __init__(self) -> None:
        self._is_full = False
        sys.addaudithook(self._look)

    def fill(self) -> None:
        self._is_full = True

    def _look(self, event: str, given: Sequence[Any]) -> None:
        if self._is_full and event == "open" and given[2] & _WRITING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), given[0])
