"""`make soak`: `cpu-smoke` again and again on one stack, while a part of it is killed every minute.

Usage: python -m tests.programs.chaos.soak [--minutes N] [--seed N]. Each run has a store of its
own, so it makes every stage; all it made is compared with what an undisturbed run made. After each
run the stack's memory, open files and disk are read. Exit 1 on a wrong result, on growth, or if any
temporary file or shared memory is left at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from infra.processes.children import memory_bytes
from infra.processes.leftovers import SHARED_MEMORY
from tests.programs.bench.rows import Row, show, write
from tests.programs.chaos.compare import checksums
from tests.programs.chaos.ground import is_part, pin_threads
from tests.programs.chaos.recovery import left_row
from tests.programs.chaos.stack_ground import StackGround, stack_ground

KILL_EVERY_S = 60.0
RUN_S = 1200.0
TRIES = 12
GROWTH = 0.10
"""of the later half of the runs over the earlier half"""
ENGINES = ("job", "rank", "server", "owner", "router")
SERVICES = ("prefect-server", "prefect-worker", "flow-and-worker", "mlflow", "ray-head")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the idle stack holds after a run; bytes, and bytes of disk less the stores."""

    memory: int
    files: int
    disk: int
    shared: int


class Killer:
    """Kills a random part every minute and repairs the stack, as someone on duty would."""

    def __init__(self, place: StackGround, seed: int) -> None:
        self._place, self._random = place, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.killed: list[str] = []

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(KILL_EVERY_S):
            part = self._random.choice(ENGINES + SERVICES)
            if self._kill(part):
                self.killed.append(part)
                print(f"  killed: {part}", file=sys.stderr, flush=True)
            if part in SERVICES:
                self._place.command("up")

    def _kill(self, part: str) -> bool:
        if part in SERVICES:
            return self._place.kill_service(part)
        found = [p for p in self._place.processes() if is_part(p, part, "")]
        if found:
            with contextlib.suppress(psutil.Error):
                self._random.choice(found).send_signal(signal.SIGKILL)
        return bool(found)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.chaos.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    pin_threads()
    wrong: list[str] = []
    with stack_ground() as place:
        expected = _run(place, "reference")
        usage = [_usage(place)]
        with Killer(place, given.seed) as killer:
            deadline = time.monotonic() + 60 * given.minutes
            while time.monotonic() < deadline:
                name = f"soak-{len(usage)}"
                began = time.monotonic()
                differs = _differences(expected, _run(place, name))
                wrong += [f"{name}: {line}" for line in differs]
                usage.append(_usage(place))
                told = "; ".join(differs) or "identical"
                seconds = time.monotonic() - began
                print(
                    f"{name}: {told} in {seconds:.0f} s, {usage[-1]}", file=sys.stderr, flush=True
                )
    rows = [*_rows(usage, wrong, killer.killed), left_row(place.left)]
    show(rows, f"soak of {given.minutes:.0f} minutes, seed {given.seed}")
    write(rows, Path("build/soak.json"))
    return 0 if all(row.holds for row in rows) else 1


def _run(place: StackGround, name: str) -> dict[str, Any]:
    """Run the recipe to its end, resuming it whenever it fails; -> what it made."""
    store = place.home / "stores" / name
    wanted = ["run", "cpu-smoke", "--name", name, "--set", f"storage.root=file://{store}"]
    deadline = time.monotonic() + RUN_S
    for _ in range(TRIES):
        if place.call(*wanted, timeout=max(1.0, deadline - time.monotonic())) == 0:
            break
        place.command("up")
        if place.knows(name):
            wanted = ["resume", name]
    made = {
        f"{path.parent.parent.name}/{path.parent.name}": checksums(path)
        for path in store.glob("artifacts/*/*/manifest.json")
    }
    shutil.rmtree(store, ignore_errors=True)
    return made


def _differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    missing = [f"{artifact} is missing" for artifact in expected.keys() - found.keys()]
    return missing + [
        f"{artifact}/{name} differs"
        for artifact in expected.keys() & found.keys()
        for name in expected[artifact]
        if found[artifact].get(name) != expected[artifact][name]
    ]


def _usage(place: StackGround) -> Usage:
    processes = place.processes()
    files = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            files += process.num_fds()
    stores = place.home / "stores"
    kept = [p for p in place.home.rglob("*") if p.is_file() and stores not in p.parents]
    shared = sum(p.stat().st_size for p in SHARED_MEMORY.iterdir() if p.is_file())
    return Usage(memory_bytes(processes), files, sum(p.stat().st_size for p in kept), shared)


def _rows(usage: list[Usage], wrong: list[str], killed: list[str]) -> list[Row]:
    runs = len(usage) - 1
    half = max(1, len(usage) // 2)
    first, last = usage[:half], usage[half:]

    def growth(name: str) -> Row:
        before, after = (
            statistics.median(getattr(u, name) for u in part) for part in (first, last)
        )
        note = f"median of the earlier half {before:.4g}, of the later half {after:.4g}"
        return Row(f"growth: {name}", after / before - 1, "", GROWTH, at_most=True, note=note)

    kinds = ", ".join(f"{part} {killed.count(part)}" for part in sorted(set(killed)))
    disk = (usage[-1].disk - usage[0].disk) / max(1, runs) / 2**20
    shared = (usage[-1].shared - usage[0].shared) / 2**20
    return [
        Row("runs completed", runs, "runs", note=f"{len(killed)} kills: {kinds}"),
        Row("wrong results", len(wrong), "", 0.0, at_most=True, note="; ".join(wrong[:3])),
        growth("memory"),
        growth("files"),
        Row("disk of the home less the stores", disk, "MiB a run", note="records and logs"),
        Row("shared memory", shared, "MiB", 1.0, at_most=True, note="at the end less at first"),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
