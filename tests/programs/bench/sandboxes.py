"""How long a sandbox takes to be ready, what a command in one costs, and what kills leave."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil

from infra.home import runtime_dir
from infra.sandbox.agent_sandbox import AgentSandbox
from infra.sandbox.kinds import bubblewrap, process
from infra.sandbox.pool import Pool
from infra.sandbox.python import level
from infra.sandbox.sandbox import Limits, SandboxLost
from tests.programs.bench.rows import Row

TIMES, AT_ONCE, KILLS = 64, 64, 200
_PRINT = ["python", "-c", "print(42)"]


def measure() -> list[Row]:
    if not level().holds:
        return []
    process.start(Limits()).stop()  # the process that forks them is there from now on
    rows = _of_kind("process", process.start, 0.05)
    if not bubblewrap.refusal():
        rows += _of_kind("bubblewrap", bubblewrap.start, None)
    return [*rows, _at_once(), _taken_warm(), _left_over()]


def _of_kind(name: str, start: Callable[[Limits], AgentSandbox], floor: float | None) -> list[Row]:
    starts: list[float] = []
    commands: list[float] = []
    for _ in range(TIMES):
        began = time.perf_counter()
        with start(Limits()) as sandbox:
            starts.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert sandbox.exec(_PRINT).stdout == "42\n"
            commands.append(time.perf_counter() - began)
    note = f"p90 {1000 * statistics.quantiles(starts, n=10)[-1]:.0f} ms of {TIMES}"
    bound = 1000 * floor if floor else None
    ready, told = (1000 * statistics.median(seconds) for seconds in (starts, commands))
    return [
        Row(f"{name} sandbox ready, p50", ready, "ms", bound, True, note),
        Row(f"{name} sandbox, a Python command, p50", told, "ms"),
    ]


def _at_once() -> Row:
    """All are started together and are alive together."""
    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = list(threads.map(lambda _: process.start(Limits()), range(AT_ONCE)))
        told = list(threads.map(lambda one: one.exec(_PRINT).stdout, started))
        seconds = time.perf_counter() - began
        list(threads.map(AgentSandbox.stop, started))
    assert told == ["42\n"] * AT_ONCE
    return Row(f"{AT_ONCE} process sandboxes at once, with a command each", seconds, "s")


def _taken_warm() -> Row:
    pool = Pool(partial(process.start, Limits()), warm=4, most=4)
    waits: list[float] = []
    for _ in range(16):
        pool.fill()
        began = time.perf_counter()
        with pool.taken():
            waits.append(time.perf_counter() - began)
    pool.close()
    return Row("a warm process sandbox out of a pool, p50", 1000 * statistics.median(waits), "ms")


def _left_over() -> Row:
    """Processes and folders after SIGKILLs of sandboxes' processes, and of what forks them."""
    rng = random.Random(0)
    zygote = _zygote()
    before = (_descendants(), _folders())
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(lambda seed: _kill_one(zygote, seed), [rng.random() for _ in range(KILLS)])
        )
    zygote.kill()
    zygote.wait(10)
    process.start(Limits()).stop()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _descendants() > before[0]:
        time.sleep(0.1)
    left = max(0, _descendants() - before[0]) + len(_folders() - before[1])
    return Row(
        f"left over after {KILLS} kills of sandboxes", left, "", 0, True, "and their parent's"
    )


def _kill_one(zygote: psutil.Process, seed: float) -> None:
    """Kills one process of any sandbox while this one runs a command."""
    with contextlib.suppress(SandboxLost), process.start(Limits()) as sandbox:
        killer = threading.Timer(seed * 0.05, _kill_any, (zygote, random.Random(seed)))
        killer.start()
        sandbox.exec(["python", "-c", "import time; time.sleep(0.2)"])
        killer.join()


def _kill_any(zygote: psutil.Process, rng: random.Random) -> None:
    if family := zygote.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            rng.choice(family).kill()


def _zygote() -> psutil.Process:
    children = psutil.Process().children()
    return next(child for child in children if "zygote.py" in " ".join(child.cmdline()))


def _descendants() -> int:
    return len(psutil.Process().children(recursive=True))


def _folders() -> set[str]:
    base = runtime_dir()
    return {path.name for path in base.parent.glob(f"{base.name}-{os.getpid()}-sandbox-*")}
