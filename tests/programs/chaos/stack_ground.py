"""Where cells of the whole stack run: `tributary up` before, flows through Prefect's worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.processes.children import family, find
from infra.stack.record import Stack, load_record
from tests.programs.chaos.cells import Cell
from tests.programs.chaos.ground import CLI, Ground, fresh_home

UP_S = 300.0
_SERVICES = {"ray-head": "ray"}


class StackGround(Ground):
    """A home whose services a cell kills; `tributary up` repairs them, as a person would."""

    deployed = ("deployed",)

    def __init__(self, home: Path, references: Path | None = None) -> None:
        super().__init__(home, "", references)
        self._env.pop("RAY_ADDRESS")

    def command(self, name: str) -> None:
        """`up`, which has to succeed, or `down`."""
        if self.call(name, timeout=UP_S) != 0 and name == "up":
            raise RuntimeError(f"the stack does not come up; see {self.home / 'stack.log'}")

    def call(self, *arguments: str, timeout: float) -> int:
        """Exit code of `tributary ARGUMENTS`."""
        with (self.home / "stack.log").open("ab") as log:
            done = subprocess.run(
                [sys.executable, *CLI, *arguments],
                env=self._env, stdout=log, stderr=log, timeout=timeout, check=False,
            )  # fmt: skip
        return done.returncode

    def hit(self, cell: Cell, store: Path, flow: subprocess.Popen[bytes]) -> bool:
        if cell.target == "whole-stack":  # the command that looks on dies with its machine
            flow.kill()
        return self.kill_service(cell.target)

    def kill_service(self, part: str) -> bool:
        """Kill a service with all that it started; False when there is nothing of it."""
        doomed = self._doomed(part)
        for process in doomed:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        return bool(doomed)

    def knows(self, run: str) -> bool:
        """Whether a run of this name is on record."""
        return any((self.home / "runs").glob(f"{run}-*.json"))

    def repair(self, cell: Cell) -> None:
        self.command("up")

    def processes(self) -> list[psutil.Process]:
        return family(_stack().services.values(), _stack().mark)

    def _doomed(self, part: str) -> list[psutil.Process]:
        stack = _stack()
        if part == "whole-stack":
            return self.processes()
        if part in ("prefect-worker", "flow-and-worker"):
            worker = find(stack.services["prefect-worker"])
            if worker is None:
                return []
            flows = worker.children(recursive=True) if part == "flow-and-worker" else []
            return [worker, *flows]
        name = _SERVICES.get(part, part)
        return family([stack.services[name]], f"{stack.mark}/{name}")


def _stack() -> Stack:
    stack = load_record()
    if stack is None:
        raise RuntimeError("the stack's record is gone")
    return stack


@contextmanager
def stack_ground(references: Path | None = None) -> Generator[StackGround]:
    """A fresh home with its stack; both end with the block."""
    with fresh_home() as home:
        place = StackGround(home, references)
        try:
            place.command("up")
            yield place
        finally:
            place.command("down")
            place.close()
