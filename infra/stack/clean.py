"""What a crash of the machine left behind in this home, and its removal.

Looked at: the folder of the stack's sockets, temporary folders and shared memory of processes that
are gone, folders of jobs that were killed, drafts of records, of the store's files and of copies,
and a record of a stack of which nothing runs. A thing of a living process is never touched, nor
one of another home but shared memory that a dead process left an hour ago; what may still be of use
is not ours to judge: artifacts, checkpoints, logs and databases stay.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.home import home, runtime_dir
from infra.processes.children import family, is_alive
from infra.processes.leftovers import leftovers_of_dead, remove_leftovers
from infra.stack.record import load_record, save_record, stack_lock

DRAFT_SECONDS = 24 * 3600.0
"""a draft of one write is that of a dead process by then"""
_RECORD_DRAFT = re.compile(r"(?:stack|\.doctor)\.(\d+)")
_STORE_DRAFT = re.compile(r"\..+\.[0-9a-f]{12}")
_COPY_DRAFT = re.compile(r"a\d+\.[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Example: Leftover("draft of a record", Path("/tmp/tributary-3f09c2b1"), ...)"""

    what: str
    path: Path
    remove: Callable[[], object]


def clean(*, dry: bool = False) -> list[Leftover]:
    """Find what nobody owns any more and, unless `dry`, remove it; returns what was found.

    Waits for an `up` or `down` of this home that goes on; a dry look does not.
    """
    if dry:
        return list(_leftovers())
    with stack_lock():
        found = list(_leftovers())
        for leftover in found:
            leftover.remove()
    return found


def _leftovers() -> Iterator[Leftover]:
    yield from _stack()
    for path in leftovers_of_dead():
        yield Leftover(
            "of a process that no longer exists", path, lambda path=path: remove_leftovers([path])
        )
    for path in home().iterdir():
        draft = _RECORD_DRAFT.fullmatch(path.name)
        if draft and not psutil.pid_exists(int(draft.group(1))):
            yield Leftover("draft of a record", path, lambda path=path: path.unlink(True))
    for path in (home() / "store").rglob(".*"):
        if _STORE_DRAFT.fullmatch(path.name) and _age(path) > DRAFT_SECONDS:
            yield Leftover("draft in the store", path, lambda path=path: path.unlink(True))
    for path in (home() / "cache").glob("artifacts/*/*/a*"):
        if _COPY_DRAFT.fullmatch(path.name) and _age(path) > DRAFT_SECONDS:
            yield Leftover("part of a copy", path, lambda path=path: shutil.rmtree(path, True))


def _stack() -> Iterator[Leftover]:
    """The record and the sockets of a stack of which no process is left."""
    record = load_record()
    if record is not None and (
        any(is_alive(service) for service in record.services.values()) or family([], record.mark)
    ):
        return
    if record is not None and record.services:
        gone = record.model_copy(update={"services": {}})
        yield Leftover(
            "record of a stack that no longer exists",
            home() / "stack.json",
            lambda: save_record(gone),
        )
    folder = runtime_dir()
    if folder.exists() and not _in_use(folder):
        yield Leftover(
            "sockets of a stack that no longer exists", folder, lambda: shutil.rmtree(folder, True)
        )


def _in_use(folder: Path) -> bool:
    """Whether a process names the folder on its command line, as every part of Ray does."""
    name = f"{folder}/"
    for process in psutil.process_iter(["cmdline"]):
        if any(name in part for part in process.info["cmdline"] or ()):
            return True
    return False


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
