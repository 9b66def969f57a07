"""Child processes that outlive the command that started them: start, wait, recognise, end.

A process is known by pid *and* birth, so a pid that was given to someone else is never
touched. Everything that descends from our children carries `MARK_VARIABLE` in its environment, so
also those that were handed to init are found.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import psutil

from infra.config import Config
from infra.errors import InfrastructureError

MARK_VARIABLE = "TRIBUTARY_STACK"
POLL_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 0.5
"""between two looks at what starts slowly: each takes time from it on a small machine"""
TAIL_LINES = 15
# A shell's background job starts with SIGINT ignored, and servers then never end on it; Python
# code that would reset it between fork and exec is not safe in a threaded parent.
_WITH_DEFAULT_SIGNALS = (
    "import os, signal, sys; "
    "[signal.signal(s, signal.SIG_DFL) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessRecord(Config):
    """A process that we started. It leads a session of its own."""

    pid: int
    birth: str
    """`birth_of` the pid"""
    log: Path


def start(command: Sequence[str], env: Mapping[str, str], log: Path, cwd: Path) -> ProcessRecord:
    """Start `command` (an absolute program path first) with its output appended to `log`. Other
    users can read nothing that it, or what it starts, writes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", opener=_private) as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WITH_DEFAULT_SIGNALS, *command],
            env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, umask=0o077,
        )  # fmt: skip
    _children[child.pid] = child
    return ProcessRecord(pid=child.pid, birth=birth_of(child.pid), log=log)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def find(record: ProcessRecord) -> psutil.Process | None:
    """The recorded process if it still runs; a zombie does not."""
    child = _children.get(record.pid)
    if child is not None:
        child.poll()  # reaps it, should it be over
    return same_process(record.pid, record.birth)


def birth_of(pid: int) -> str:
    """Return when a process began: the boot and the kernel's ticks since. With the pid it is
    unique.

    psutil's creation time is derived from the wall clock: it differs by a second or more from one
    reading to the next when the clock is adjusted. Raises psutil.NoSuchProcess.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    after_name = stat.rpartition(")")[2].split()  # from the 3rd field on; the 22nd is the start
    return f"{_boot()}:{after_name[19]}"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def same_process(pid: int, birth: str) -> psutil.Process | None:
    """The process of that pid if it was born then and still runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        same = birth_of(pid) == birth
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def is_alive(record: ProcessRecord) -> bool:
    return find(record) is not None


def wait_ready(name: str, record: ProcessRecord, probe: Callable[[], bool], timeout: float) -> None:
    """Wait until `probe` holds. Raises InfrastructureError with the log's end when the process
    dies first or `timeout` seconds pass."""
    deadline, pause = time.monotonic() + timeout, POLL_SECONDS
    while not probe():
        if not is_alive(record):
            raise InfrastructureError(_told(name, record, "ended while it started"))
        if time.monotonic() > deadline:
            raise InfrastructureError(_told(name, record, f"is not ready after {timeout:.0f} s"))
        time.sleep(pause)
        pause = min(1.2 * pause, LONGEST_PAUSE_SECONDS)


def family(records: Iterable[ProcessRecord], mark: str) -> list[psutil.Process]:
    """Our living processes: the recorded ones, their descendants, and all whose mark is `mark` or
    starts with `mark/`."""
    found: dict[int, psutil.Process] = {}
    for record in records:
        process = find(record)
        if process is not None:
            found[process.pid] = process
            found |= {child.pid: child for child in _descendants(process)}
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _carries(process, mark):
            found[process.pid] = process
    return list(found.values())


def terminate(processes: Sequence[psutil.Process], seconds: float) -> int:
    """SIGTERM, then SIGKILL for what is left after `seconds`; returns how many had to be killed."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    return finish(processes, seconds)


def finish(processes: Sequence[psutil.Process], seconds: float) -> int:
    """Wait for processes that were asked to end, then SIGKILL; returns how many had to be."""
    _, alive = _wait(processes, seconds)
    for process in alive:
        _signal(process, signal.SIGKILL)
    _wait(alive, 5.0)
    return len(alive)


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Proportional set size: what the processes really cost together."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            continue
    return total


def end_of_log(path: Path, num_bytes: int) -> str:
    """Return the text of at most so many bytes at a log's end; empty on a machine without it."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - num_bytes))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Last lines of a log, each after `  | `; a note when there is none."""
    text = end_of_log(log, 64_000).splitlines()
    return "\n".join(f"  | {line}" for line in text[-lines:]) or "  | (no log)"


def _wait(
    processes: Sequence[psutil.Process], seconds: float
) -> tuple[list[psutil.Process], list[psutil.Process]]:
    deadline = time.monotonic() + seconds
    alive = list(processes)
    while alive and time.monotonic() < deadline:
        alive = [process for process in alive if _runs(process)]
        if alive:
            time.sleep(POLL_SECONDS)
    gone = [process for process in processes if process not in alive]
    return gone, alive


def _runs(process: psutil.Process) -> bool:
    child = _children.get(process.pid)
    if child is not None:
        child.poll()
    try:
        # is_running compares the creation time too; a zombie of another parent is over for us.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        carried = process.environ().get(MARK_VARIABLE, "")
    except (psutil.Error, OSError):
        return False
    return carried == mark or carried.startswith(f"{mark}/")


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil refuses when the pid has a new owner
    except psutil.Error:
        return


def _told(name: str, record: ProcessRecord, what: str) -> str:
    return (
        f"{name} {what}. Last lines of {record.log}:\n{log_tail(record.log)}\n"
        "Repair the cause and run `tributary up` again; `tributary doctor` checks for common causes"
    )
