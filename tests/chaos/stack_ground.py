"""Where cells of the whole stack run: `tributary up` before, flows through Prefect's worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.processes import family, find
from infra.stack.record import Stack, load_record
from tests.chaos.cells import Cell
from tests.chaos.ground import Ground, fresh_home

UP_S = 300.0
_SERVICES = {"ray-head": "ray"}


class StackGround(Ground):
    """A home whose services a cell kills; `tributary up` mends them, as a person would."""

    deployed = ("deployed",)

    def __init__(self, home: Path) -> None:
        super().__init__(home, "")
        self._env.pop("RAY_ADDRESS")
        self.command("up")

    def command(self, name: str) -> None:
        cli = "import sys; from flows.cli import main; main(sys.argv[1:])"
        with (self.home / "stack.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-P", "-c", cli, name],
                env=self._env, stdout=log, stderr=log, timeout=UP_S, check=name == "up",
            )  # fmt: skip

    def hit(self, cell: Cell, store: Path, flow: subprocess.Popen[bytes]) -> bool:
        doomed = self._doomed(cell.part)
        for process in doomed:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue
        return bool(doomed)

    def mend(self, cell: Cell) -> None:
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
def stack_ground() -> Generator[StackGround]:
    """A fresh home with its stack; both end with the block."""
    home, settings = fresh_home()
    kept = {name: os.environ.get(name) for name in settings}
    os.environ |= settings
    place = None
    try:
        place = StackGround(home)
        yield place
    finally:
        if place is not None:
            place.command("down")
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(home, ignore_errors=True)
