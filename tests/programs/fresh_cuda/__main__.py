"""`make fresh-cuda`: the CUDA lock on a machine without a GPU, up to a whole recipe on its torch.

Usage: python -m tests.programs.fresh_cuda [STEP...]. The environment takes 12 GB in
`build/fresh-cuda` and is removed at the end; with KEEP=1 it stays, and the next run goes on with
it. Prints a table of the steps and writes `build/fresh-cuda.json`. It ends with the first step that
fails, whose command and log it names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.programs.bench.rows import Row, show, write
from tests.programs.fresh_cuda.steps import ROOT, Step, environment, steps

BUILD = ROOT / "build"
LOGS = BUILD / "fresh-cuda-logs"
NEEDED_BYTES = 30 << 30
"""the environment, and the same again in uv's cache where that is on another disk"""


def main(wanted: Sequence[str]) -> int:
    folder, is_kept = BUILD / "fresh-cuda", os.environ.get("KEEP", "0") not in ("", "0")
    known = steps(folder)
    unknown = set(wanted) - {step.name for step in known}
    if unknown:
        print("no such step:", *sorted(unknown), "; there are:", *(s.name for s in known), sep="\n")
        return 2
    if not is_kept:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "venv").exists() and (problem := _too_little_room(folder)):
        print(problem)
        return 2
    chosen = [step for step in known if not wanted or step.name in wanted]
    try:
        rows, failed = run(chosen, environment(folder), LOGS)
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    write(rows, BUILD / "fresh-cuda.json")
    show(rows, "the CUDA lock without a GPU")
    if failed:
        print(f"{failed.name}: failed; its output is in {_log(failed, LOGS)}\n  {failed.typed()}")
        if not is_kept:
            print("`KEEP=1 make fresh-cuda` keeps the environment, to repeat it")
    return 1 if failed else 0


def run(
    chosen: Sequence[Step], variables: Mapping[str, str], logs: Path
) -> tuple[list[Row], Step | None]:
    """A row for each step, and the first that failed. The steps after it are not tried, but a stack
    that is up ends."""
    logs.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    failed: Step | None = None
    is_up = False
    for step in chosen:
        is_end_of_stack = step.name == "down"
        if failed and not (is_end_of_stack and is_up):
            rows.append(Row(f"{step.name}: holds", 0, "of 1", 1, note="not reached"))
            continue
        is_up = is_up or step.name == "up"
        print(f"{step.name} ...", flush=True)
        began = time.monotonic()
        holds = _holds(step, variables, _log(step, logs))
        note = f"{time.monotonic() - began:.0f} s"
        print(f"{step.name}: {'holds' if holds else 'FAILED'} after {note}", flush=True)
        rows.append(Row(f"{step.name}: holds", int(holds), "of 1", 1, note=note))
        failed = failed or (None if holds else step)
    return rows, failed


def _holds(step: Step, variables: Mapping[str, str], log: Path) -> bool:
    with log.open("w") as out:
        try:
            done = subprocess.run(
                step.command,
                cwd=ROOT,
                env={**variables, **step.variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=step.within_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            out.write(f"\n{error}\n")
            return False
    return done.returncode == 0


def _log(step: Step, logs: Path) -> Path:
    return logs / f"{re.sub('[^a-zA-Z-]+', '-', step.name)}.log"


def _too_little_room(folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    if free >= NEEDED_BYTES:
        return ""
    return (
        f"`make fresh-cuda` needs {NEEDED_BYTES / 1e9:.0f} GB in {folder} for the CUDA lock, and"
        f" {free / 1e9:.0f} are free"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
