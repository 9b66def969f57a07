"""What one of our processes leaves when it is killed, and how others see that it is dead.

    /tmp/tributary-<home>-<pid>[-...]            its temporary folders
    /dev/shm/*tributary-<home>-<pid>[_-...]      its shared memory
    HOME/shared-memory/<name>                    a note of shared memory that others named
    HOME/work/<job>                              see `infra.processes.work_folder`

It is removed by the next process: a rank or a server that starts, a job that begins or ends,
`tributary down`, `doctor --clean`. A pid that was given to another process keeps its traces until
that one ends as well: too late rather than too early. Shared memory that a dead process of another
home left takes this machine's memory, and its home may be gone: it is removed after an hour.
"""

from __future__ import annotations

import getpass
import os
import re
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from infra.home import home, own_folder, runtime_dir
from infra.processes.work_folder import abandoned_work
from infra.sandbox.trees import remove

SHARED_MEMORY = Path("/dev/shm")
_OTHER_HOME_SECONDS = 3600.0
"""age of another home's shared memory; its process may be in a container that has a pid of its own
for it, but all who use it have found it by then"""
_ANY_HOME = re.compile(r".*tributary-[0-9a-f]{8}-(\d+)([_.-].*)?")
_PID_IN_TORCH_NAME = re.compile(r"torch_(\d+)_")


def trace_name(pid: int) -> str:
    """Return what the name of everything that the process leaves holds. Example:
    tributary-3f09c2b1-77
    """
    return f"{runtime_dir().name}-{pid}"


def private_folder(pid: int) -> Path:
    """The process's own temporary folder; short, for it holds sockets. Not made here."""
    return runtime_dir().parent / trace_name(pid)


def claim_private_folder() -> None:
    """Let this process, and those that it starts, keep temporary files in its folder.

    What processes that are gone left is removed.
    """
    remove_leftovers(leftovers_of_dead())
    # what is compiled for one process serves the next one too
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        compiled = own_folder(runtime_dir().parent / f"torchinductor_{getpass.getuser()}")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
    folder = own_folder(private_folder(os.getpid()))
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


@contextmanager
def temporary_folder() -> Generator[Path]:
    """A folder for a while. Its name tells whose it was, should this process be killed."""
    private = private_folder(os.getpid())
    with tempfile.TemporaryDirectory(prefix=f"{private.name}-", dir=private.parent) as folder:
        yield Path(folder)


def note_torch_memory(name: str) -> None:
    """Write down a /dev/shm file that torch named, e.g. torch_77_123_0: it carries no home."""
    folder = home() / "shared-memory"
    folder.mkdir(exist_ok=True)
    (folder / name.strip("/")).touch()


def leftovers_of(pid: int | None = None) -> list[Path]:
    """Return every trace of one process of this home, or of all of them."""
    anyone = re.escape(runtime_dir().name) + (rf"-{pid}" if pid is not None else r"-(\d+)")
    folder = re.compile(rf"{anyone}(-.*)?")
    memory = re.compile(rf".*{anyone}([_.-].*)?")
    return [
        *_named(runtime_dir().parent, folder),
        *_named(SHARED_MEMORY, memory),
        *(note for note in _notes() if pid in (None, _torch_pid(note))),
    ]


def leftovers_of_dead() -> list[Path]:
    """Traces of this home whose process is gone, folders of jobs that were killed, and what other
    homes of this user long left in shared memory."""
    owner = re.compile(re.escape(runtime_dir().name) + r"-(\d+)")
    found: list[Path] = []
    for path in leftovers_of():
        match = owner.search(path.name)
        pid = int(match.group(1)) if match else _torch_pid(path)
        if pid is not None and is_over(pid):
            found.append(path)
    return [*found, *_memory_of_other_homes(set(found)), *abandoned_work()]


def is_over(pid: int) -> bool:
    """Return whether there is no such process, or one that has ended and whose parent has not asked
    how: the first process of a container may never ask."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _memory_of_other_homes(known: set[Path]) -> Iterator[Path]:
    for path in _named(SHARED_MEMORY, _ANY_HOME):
        match = _ANY_HOME.fullmatch(path.name)
        with suppress(FileNotFoundError):
            about = path.lstat()
            is_ours = about.st_uid == os.geteuid() and path not in known
            is_old = time.time() - about.st_mtime > _OTHER_HOME_SECONDS
            if match and is_ours and is_old and is_over(int(match.group(1))):
                yield path


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Remove them; one that no longer exists, or that we may not remove, is skipped."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                remove(str(path))
                continue
            if path.parent == home() / "shared-memory":
                (SHARED_MEMORY / path.name).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError:
            continue


def _named(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def _notes() -> list[Path]:
    return _named(home() / "shared-memory", re.compile(r"torch_\d+_.*"))


def _torch_pid(path: Path) -> int | None:
    match = _PID_IN_TORCH_NAME.match(path.name)
    return int(match.group(1)) if match else None
