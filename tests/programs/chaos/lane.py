"""A lane: one ground in a process of its own, which runs the cells that it is told, one by one.

`python -m tests.programs.chaos.lane ray|stack REFERENCES SEED` says that it is ready, takes a
cell's name a line on the standard input, and answers a line of JSON for each on the standard
output; at the end of the input one that says what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, Queue
from subprocess import PIPE
from typing import Literal

from tests.programs.chaos.cells import Cell
from tests.programs.chaos.recovery import End

Kind = Literal["ray", "stack"]
READY = "ready\n"
OPENINGS = 3
"""of a lane in a row, on a machine that is too busy for Ray's own limits"""


def run_lane(
    kind: Kind, references: Path, seed: int, cells: Queue[Cell], done: Callable[[End], None]
) -> list[str]:
    """Run cells until the queue is empty, in a new lane where one dies; -> what they left."""
    command = [sys.executable, "-m", "tests.programs.chaos.lane", kind, str(references), str(seed)]
    left: list[str] = []
    unopened = 0
    while not cells.empty() and unopened < OPENINGS:
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as lane:
            assert lane.stdout is not None
            unopened = 0 if lane.stdout.readline() == READY else unopened + 1
            if not unopened:
                left += _work_through(lane, cells, done)
    if unopened:
        raise RuntimeError(f"no lane opens ({kind}); the errors are above")
    return left


def _work_through(
    lane: subprocess.Popen[str], cells: Queue[Cell], done: Callable[[End], None]
) -> list[str]:
    assert lane.stdin is not None
    assert lane.stdout is not None
    while True:
        try:
            cell = cells.get_nowait()
        except Empty:
            break
        with suppress(BrokenPipeError):  # then it says nothing either
            print(cell.name, file=lane.stdin, flush=True)
        answer = lane.stdout.readline()
        if not answer:
            done(End(cell.name, False, 0.0, -1.0, "! its lane died; the error is above"))
            return ["what a lane left that died"]
        done(End(**json.loads(answer)))
    lane.stdin.close()
    return json.loads(lane.stdout.readline() or '["what a lane left that died"]')


def main(kind: str, references: str, seed: str) -> None:
    from tests.programs.chaos.ground import ground, jitter
    from tests.programs.chaos.stack_ground import stack_ground

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    opened = stack_ground if kind == "stack" else ground
    with opened(Path(references)) as place:
        print(READY, end="", file=answers, flush=True)
        for name in iter(sys.stdin.readline, ""):
            part, moment = name.split()
            cell = Cell(part, moment)
            print(
                json.dumps(asdict(place.run(cell, jitter(int(seed), cell)))),
                file=answers,
                flush=True,
            )
    print(json.dumps(place.left), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
