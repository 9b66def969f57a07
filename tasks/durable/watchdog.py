"""The watchdog of a stage: when nothing gets on for too long, it says where everything stands.

Progress is a reported step, a finished rollout, a checkpoint, or a file (64 MiB of a large one) on
its way to or from the store. Waiting for engines that others hold has a bound of its own and does
not count.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from infra.errors import StageStalled
from infra.home import home
from infra.processes.coroutines import task_stacks
from infra.processes.part_process import part_stacks
from infra.secret_references import ask_program
from infra.store.removal import NoteKind
from tasks.stage import Checkpoints, Pulse

_LONGEST_POLL_SECONDS = 5.0
_PROCESS_SECONDS = 10.0
"""what one process may take to be looked at"""
_OURS = ("sglang", "tasks.durable.job", "engines.")


@contextmanager
def watchdog(
    pulse: Pulse, bound: float, job: str, on_stall: Callable[[StageStalled], None]
) -> Generator[None]:
    """Call `on_stall` from a thread, once, when the stage stands still for `bound` seconds.

    It also works while the event loop itself hangs.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(bound / 10, _LONGEST_POLL_SECONDS)):
            if pulse.idle_seconds > bound:
                on_stall(stalled(job, bound))
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def stalled(job: str, bound: float) -> StageStalled:
    """The error, with the file that has the stacks of all processes."""
    try:
        stacks = str(dump_stacks(job))
    except Exception as error:  # a full disk must not keep the stage from its end
        stacks = f"could not be written down ({type(error).__name__}: {error})"
    return StageStalled(
        f"no step, rollout or checkpoint of job {job} was finished within {bound:.0f} s: a process "
        f"hangs, or is far slower than that. What each process was doing: {stacks}. It "
        "continues from its last checkpoint; raise resources' `stall_seconds` if its steps"
        " take that "
        "long"
    )


@dataclass(frozen=True, slots=True)
class WatchedCheckpoints:
    """Checkpoints that count as progress."""

    inner: Checkpoints
    pulse: Pulse

    def begin(self, step: int, folder: Path) -> None:
        self.inner.begin(step, folder)

    def save(
        self, step: int, folder: Path, score: float | None = None, rollouts_from: int = 0
    ) -> None:
        self.inner.save(step, folder, score, rollouts_from)
        self.pulse.beat()

    def latest(self) -> tuple[int, Path] | None:
        return self.inner.latest()

    def note(self, kind: NoteKind, number: int, data: bytes) -> None:
        self.inner.note(kind, number, data)
        self.pulse.beat()

    def notes(self, kind: NoteKind, first: int, last: int | None = None) -> list[bytes]:
        found = self.inner.notes(kind, first, last)
        self.pulse.beat()
        return found


def dump_stacks(name: str) -> Path:
    """Write the stacks of this process and of all that work for stages of this home; -> the file.

    Of this process the asyncio tasks too. Its parts' processes write their own stacks; others are
    read with py-spy, which needs the right to trace them: where it is refused the file says so.
    Processes on other machines are not reached.
    """
    folder = home() / "logs" / "stacks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.txt"
    with path.open("wb") as file:
        _title(file, psutil.Process())
        faulthandler.dump_traceback(file, all_threads=True)
        file.write(f"\n--- its asyncio tasks\n{task_stacks()}".encode())
        for name, stack in part_stacks():
            file.write(f"\n--- {name}, in process {stack}".encode())
        file.flush()
        for process in stage_processes():
            _title(file, process)
            file.write(_look_at(process.pid))
            file.flush()
    return path


def stage_processes() -> list[psutil.Process]:
    """Ray's workers, engine servers and jobs of this home, without this process."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if _is_of_home(process):
            found[process.pid] = process
            try:
                # A process that changes its title may lose its environment, its parent has it.
                found |= {child.pid: child for child in process.children(recursive=True)}
            except psutil.Error:
                continue
    found.pop(os.getpid(), None)
    return [process for _, process in sorted(found.items()) if _works(process)]


def _is_of_home(process: psutil.Process) -> bool:
    try:
        named = process.environ().get("TRIBUTARY_HOME")
        return named is not None and Path(named).expanduser().resolve() == home()
    except (psutil.Error, OSError):
        return False


def _works(process: psutil.Process) -> bool:
    line = _command(process)
    if line.startswith("ray::"):
        return not line.startswith("ray::IDLE")
    return any(part in line for part in _OURS)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _title(file: BinaryIO, process: psutil.Process) -> None:
    try:
        state = process.status()
    except psutil.Error:
        state = "gone"
    file.write(f"\n=== {process.pid} ({state}) {_command(process)[:200]}\n".encode())
    file.flush()


def _look_at(pid: int) -> bytes:
    program = Path(sys.executable).with_name("py-spy")
    found = str(program) if program.exists() else shutil.which("py-spy")
    if found is None:
        return b"py-spy is not installed\n"
    try:
        # It does not stop the process, so it cannot leave it stopped.
        done = ask_program([found, "dump", "--nonblocking", "--pid", str(pid)], _PROCESS_SECONDS)
    except subprocess.TimeoutExpired:
        return b"py-spy did not end in time\n"
    return (done.stdout or done.stderr).encode()
