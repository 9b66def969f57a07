"""`make month`: a simulated month of one RL stage, 20,000 steps with a kill a day and a full disk.

Usage: python -m tests.programs.month [DAYS]. Trainer, servers and the clock between them are
simulated; job, loop, records, checkpoints, tracking, MLflow's server and the report's page are
real. What a step costs on the last day is compared with the first. It writes `build/month.json`;
exit 1 if something grew, or if the result lacks a step. `docs/figures.md` tells more.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.catalog import plan_of
from flows.reports.page import write_page
from flows.reports.report import build_report
from flows.running.records import RunState
from infra.home import home
from infra.store.artifacts import ArtifactStore
from tests.parts.mlflow_server import MlflowServer
from tests.programs.bench.rows import Row, show, write
from tests.programs.growth.meter import Figure, Meter
from tests.programs.month.ground import Ground, fixed_work, prepared

RESULT = Path("build/month.json")
DAYS, STEPS_A_DAY = 30, 667
GROWTH = 1.1
"""of the last day over the first"""
LIMIT_S = 3600.0
_SETTLED = 20
"""updates of an attempt that do not count: it warms up"""
_PAGES = 9
"""made each time: one takes a tenth of a second, and varies by a fifth"""
_WORK_OF_A_PAGE = 5
"""times the fixed work that is done beside it"""


@dataclass(frozen=True, slots=True)
class Page:
    """Processor time of one report, and of the fixed work beside it; bytes that it needed."""

    cpu_s: float
    work_s: float
    memory: float


@dataclass(frozen=True, slots=True)
class Day:
    """What one day, which is one attempt, cost; counts are what was added, by steps done."""

    steps: int
    cpu_s: float
    """of processor time a step"""
    work_s: float
    """of the fixed work beside it, each time"""
    memory: float
    """bytes, at most"""
    files: float
    bytes: float
    points: float
    """of MLflow"""
    page: Page


@dataclass(frozen=True, slots=True)
class State:
    """What there is."""

    steps: int
    files: int
    bytes: int
    points: int


def main(days: int) -> int:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tr-month-"))
    os.environ["TRIBUTARY_HOME"] = str(folder / "home")
    (folder / "mlflow").mkdir()
    server = MlflowServer(folder / "mlflow")
    try:
        server.start()
        ground = prepared(folder, server, days * STEPS_A_DAY)
        found = _month(ground, days, began + LIMIT_S)
        made = _finish(ground, began + LIMIT_S)
        rows = [*_growth(found), *_end(ground, made), _time(began)]
        ground.tracker.close()
    finally:
        server.end(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)
    write(rows, RESULT)
    show(rows, f"{days} simulated days of {STEPS_A_DAY} steps")
    return 0 if all(row.holds for row in rows) else 1


def _month(ground: Ground, days: int, until: float) -> list[Day]:
    """One attempt a day, which is killed at some moment of its last quarter; on the day in the
    middle a full disk ends one more."""
    draw = random.Random(0)
    found: list[Day] = []
    before = _state(ground)
    for day in range(1, days + 1):
        kill_at = day * STEPS_A_DAY - draw.randrange(5, STEPS_A_DAY // 4)
        if day == 1 + days // 2:
            full_at = kill_at - STEPS_A_DAY // 2
            code = ground.attempt(-1, full_at, until - time.monotonic())
            assert code not in (0, -signal.SIGKILL), f"no disk was full\n{ground.said()}"
        code = ground.attempt(kill_at, -1, until - time.monotonic())
        assert code == -signal.SIGKILL, f"day {day} ended with {code}\n{ground.said()}"
        after = _state(ground)
        found.append(_day(ground, before, after))
        before = after
        print(f"day {day}: {_told(found[-1])}", file=sys.stderr, flush=True)
    return found


def _finish(ground: Ground, until: float) -> Path:
    """The attempt that ends the stage, and what the flow does with a stage that is done. -> the
    artifact's files."""
    code = ground.attempt(-1, -1, until - time.monotonic())
    made = ArtifactStore(ground.record.store).find("rl", ground.identity.digest)
    assert code == 0, f"the last attempt ended with {code}\n{ground.said()}"
    assert made is not None, ground.said()
    ground.put_stage("completed", made=made)
    ground.record.put_state(RunState(state="completed", started=1.0, seconds=2.0))
    return Path(made.url.removeprefix("file://"))


def _state(ground: Ground) -> State:
    """Of files and bytes those in the home, which has the store."""
    sizes = [file.stat().st_size for file in home().rglob("*") if file.is_file()]
    steps = max((line[0] for line in _lines(ground.log)), default=0)
    return State(steps, len(sizes), sum(sizes), ground.all_points())


def _lines(log: Path) -> list[tuple[int, float, float, int]]:
    """Version, processor time before and after the fixed work, memory of each update."""
    if not log.exists():
        return []
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


def _day(ground: Ground, before: State, after: State) -> Day:
    lines = [line for line in _lines(ground.log) if line[0] > before.steps]
    spent = [
        (later[1] - earlier[2], later[2] - later[1])
        for earlier, later in zip(lines[_SETTLED:], lines[_SETTLED + 1 :], strict=False)
        if later[0] == earlier[0] + 1 and later[1] >= earlier[1]
    ]
    steps = after.steps - before.steps
    return Day(
        steps=steps,
        cpu_s=statistics.fmean(step for step, _ in spent),
        work_s=statistics.fmean(work for _, work in spent),
        memory=max(line[3] for line in lines),
        files=(after.files - before.files) / steps,
        bytes=(after.bytes - before.bytes) / steps,
        points=(after.points - before.points) / steps,
        page=_page(ground),
    )


def _page(ground: Ground) -> Page:
    """What the report costs, in a process of its own; processor times are the means of some."""
    read, written = os.pipe()
    meter = Meter(ground.folder)

    def make() -> None:
        plan = list(plan_of("post-train", ground.record.recipe(), {}))
        work_s = 0.0
        for _ in range(_PAGES):
            with meter.counting():
                write_page(ground.record, build_report(ground.record, plan), plan)
            before = time.process_time()
            for _ in range(_WORK_OF_A_PAGE):
                fixed_work()
            work_s += time.process_time() - before
        cpu_s, memory = meter.figures[Figure.CPU], meter.figures[Figure.MEMORY]
        os.write(written, json.dumps([cpu_s / _PAGES, work_s / _PAGES, memory]).encode())

    meter.apart(make)
    os.close(written)
    with os.fdopen(read) as told:
        return Page(*json.loads(told.read()))


def _growth(days: Sequence[Day]) -> list[Row]:
    first, last = days[0], days[-1]
    figures = {
        "processor time a step": (
            first.cpu_s / first.work_s, last.cpu_s / last.work_s, 1, "times the fixed work"
        ),
        "memory of the job": (first.memory, last.memory, 1e-6, "MB"),
        "files a step": (first.files, last.files, 1, "files"),
        "bytes a step, in the store and the home": (first.bytes, last.bytes, 1e-3, "kB"),
        "points a step in MLflow": (first.points, last.points, 1, "points"),
        "processor time of a page": (
            first.page.cpu_s / first.page.work_s, last.page.cpu_s / last.page.work_s, 1,
            "times the fixed work",
        ),
        "memory of a page": (max(first.page.memory, 8e6), max(last.page.memory, 8e6), 1e-6, "MB"),
    }  # fmt: skip
    return [
        Row(
            f"{name}, last day / first day", after / before, "ratio", GROWTH, at_most=True,
            note=f"{before * scale:.3g} and {after * scale:.3g} {unit}",
        )
        for name, (before, after, scale, unit) in figures.items()
    ]  # fmt: skip


def _end(ground: Ground, made: Path) -> list[Row]:
    """Whether all steps are there once, whatever happened meanwhile."""
    steps = ground.spec.settings.steps
    takes = len((made / "takes.jsonl").read_text().splitlines())
    points = ground.points("entropy")
    page = _page(ground)
    note = f"after {ground.attempts} attempts: a kill a day, and a disk that was full once"
    return [
        Row("steps in the take log", takes, "steps", steps, note=note),
        Row("points of one metric in MLflow", points, "points", steps, note="each step once"),
        Row("more points than steps", points - steps, "points", 0, at_most=True),
        Row("rollouts.parquet", (made / "rollouts.parquet").stat().st_size / 1e6, "MB"),
        Row("memory of the page at the end", page.memory / 1e6, "MB"),
        Row("processor time of the page at the end", page.cpu_s, "s"),
    ]


def _time(began: float) -> Row:
    minutes = (time.monotonic() - began) / 60
    return Row("time of the program", minutes, "min", LIMIT_S / 60, at_most=True)


def _told(day: Day) -> str:
    return (
        f"{day.steps} steps, {day.cpu_s * 1e3:.1f} ms a step ({day.work_s * 1e3:.1f} the fixed"
        f" work), {day.memory / 1e6:.0f} MB,"
        f" {day.files:.2f} files, {day.bytes / 1e3:.1f} kB and {day.points:.1f} points a step,"
        f" page {day.page.cpu_s * 1e3:.0f} ms ({day.page.work_s * 1e3:.0f}),"
        f" {day.page.memory / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else DAYS))
