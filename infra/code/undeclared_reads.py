"""Files that the user's hooks read and their recipe does not declare: an edit of one would go
unnoticed, and the job's host may not have it.

Seen are files that Python opens while a hook's function is being called; not those that a library
opens by itself in C.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from infra.home import SOURCE_ROOT, home
from infra.user_files import InstalledFiles

_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_CODE = (".py", ".pyc", ".so")


class _Reads:
    """What hooks in one folder read."""

    def __init__(self, hooks: Path, warn: Callable[[str], None]) -> None:
        self.warnings: list[str] = []
        self._hooks, self._warn = f"{hooks}{os.sep}", warn
        own = (home(), SOURCE_ROOT / "engines", tempfile.gettempdir(), sys.prefix, sys.base_prefix)
        self._others = tuple(f"{place}{os.sep}" for place in (*_SYSTEM, *map(str, own)))
        self._seen: set[str] = set()
        self._thread = threading.local()

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        """Called for every file that this process opens; must be quick, and must not raise."""
        if not isinstance(path, str | bytes | os.PathLike) or not _reads(mode, flags):
            return
        file = os.path.abspath(os.fsdecode(path))
        if file in self._seen or file.endswith(_CODE) or getattr(self._thread, "is_busy", False):
            return
        if file.startswith(self._others) or any(part in file for part in _INSTALLED):
            return
        hook = next((name for name in _stack() if name.startswith(self._hooks)), None)
        if hook is None or not os.path.isfile(file):
            return
        self._seen.add(file)
        self._thread.is_busy = True
        try:
            self.say(
                f"hook {hook.removeprefix(self._hooks)} reads {file}, which the recipe does not"
                " declare: an edit of it would not be noticed, and another host may not have it."
                " List it under `data:` and open it by `infra.user_files.data_path`"
            )
        finally:
            self._thread.is_busy = False

    def say(self, said: str) -> None:
        if said not in self.warnings:
            self.warnings.append(said)
            self._warn(said)


_current: _Reads | None = None
_is_installed = False


def watch_reads(user: InstalledFiles, warn: Callable[[str], None] = lambda said: None) -> None:
    """Call `warn` from now on of each undeclared file that these hooks read, once."""
    global _current, _is_installed
    _current = None if user.folder is None else _Reads(user.folder, warn)
    if _current is not None and not _is_installed:
        sys.addaudithook(_audit)  # for good: Python has no way to take one back
        _is_installed = True


def pass_on(said: str) -> None:
    """Warn of what another process of this one saw."""
    if _current is not None:
        _current.say(said)


def undeclared_reads() -> list[str]:
    """Return what `watch_reads` has warned about so far."""
    return list(_current.warnings) if _current is not None else []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _current is not None:
        _current.opened(*arguments)


def _reads(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return "r" in mode
    return isinstance(flags, int) and flags & os.O_ACCMODE != os.O_WRONLY


def _stack() -> Iterator[str]:
    """Files of the functions that are being called, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back
