"""The watchdog of a stage: when nothing gets on for too long, it says where everything stands.

Progress is a reported step, a finished rollout, a checkpoint, or a file (64 MiB of a large one) on
its way to or from the store. Waiting for engines that others hold has a bound of its own and does
not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StageStalled
from infra.processes.stack_dump import dump_stacks
from infra.store.removal import NoteKind
from tasks.stage import Checkpoints, Pulse

_LONGEST_POLL_SECONDS = 5.0


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
