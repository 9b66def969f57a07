"""What is done to a host while RL works on it. Nothing of it may be seen in the result."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.programs.bench.rows import Row
from tests.programs.chaos.compare import broken_promises, differences
from tests.programs.hosts.ground import Ground, Mode, Ran
from tests.programs.hosts.machines import OUTSIDE, Machine

CUT_S = 20.0
_HIDDEN_S = 60.0
"""the time until RL begins, and some more"""
_CLOCK = """import time
_real = time.time
time.time = lambda: _real() - 300.0
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One disturbance of a host."""

    name: str
    strike: Callable[[Ground, Machine], object] | None = None
    """once RL has trained a step"""
    around: Callable[[Ground, Machine], AbstractContextManager[object]] | None = None
    """before the run begins, and after it"""
    loses_host: bool = False
    host: int = 0
    """which of those that joined: the first has a trainer rank and a server, the second a server"""


def disturbed(ground: Ground, cell: Cell, mode: Mode, reference: str) -> list[Row]:
    """`reference`: the name of an undisturbed run of the mode, whose base and SFT it shares."""
    host, name = ground.others[cell.host], f"{cell.name}-{mode}".replace(" ", "-")
    strike = cell.strike
    with cell.around(ground, host) if cell.around else nullcontext():
        ran = ground.run(
            name, mode, reference, None if strike is None else lambda: strike(ground, host)
        )
    if cell.loses_host:
        ground.revive(host)
    what = f"{cell.name}, {mode}"
    return [
        unlike(
            f"{what}: rollouts lost or doubled, other results", ran, mode, ground.store(reference)
        ),
        Row(f"{what}: until RL was done", ran.seconds, "s"),
    ]


def unlike(name: str, ran: Ran, mode: Mode, reference: Path) -> Row:
    """How many things a run did not keep of what its mode promises."""
    found = ran.problem
    if not found:
        compare = differences if mode == "synchronous" else broken_promises
        found = compare(reference, ran.store)
    count = found.count(", ") + 1 if found else 0
    return Row(name, count, "problems", 0, at_most=True, note=found)


def _kill(ground: Ground, host: Machine) -> None:
    host.kill()


def _cut(ground: Ground, host: Machine) -> None:
    """The network between the head and the host; both reach everybody else."""
    with host.cut_off(ground.head.address), ground.head.cut_off(host.address):
        time.sleep(CUT_S)


def _kill_agent(ground: Ground, host: Machine) -> None:
    agents = [pid for pid, line in host.processes().items() if line.startswith("ray::HostProcess")]
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    if not agents:
        raise RuntimeError(f"host {host.name} has no agent")


@contextmanager
def _damaged_cache(ground: Ground, host: Machine) -> Generator[None]:
    """What the host fetched for runs before: it has to be noticed when RL begins."""
    files = list(host.home.glob("cache/artifacts/*/*/*/*.safetensors"))
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    if not files:
        raise RuntimeError(f"host {host.name} has fetched nothing")
    yield


@contextmanager
def _hidden_store(ground: Ground, host: Machine) -> Generator[None]:
    """A host that has nothing of what RL needs does not reach the store when it begins."""
    for folder in host.home.glob("cache/artifacts"):
        folder.rename(folder.with_name(f"gone-{time.monotonic_ns()}"))
    is_over = threading.Event()

    def hide() -> None:
        with host.cut_off(OUTSIDE):
            is_over.wait(_HIDDEN_S)

    hiding = threading.Thread(target=hide)
    hiding.start()
    try:
        yield
    finally:
        is_over.set()
        hiding.join()


@contextmanager
def _late_clock(ground: Ground, host: Machine) -> Generator[None]:
    """Python's clock on the host is five minutes slow."""
    folder = host.work / "tmp" / "clock"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CLOCK)
    _join_anew(ground, host, {"PYTHONPATH": f"/tmp/{folder.name}"})
    yield
    del host.env["PYTHONPATH"]
    _join_anew(ground, host, {})


def _join_anew(ground: Ground, host: Machine, env: dict[str, str]) -> None:
    host.tributary("down")
    host.env |= env
    ground.join(host)


LOST = Cell("host killed", _kill, loses_host=True)
CUT = Cell(f"network cut for {CUT_S:.0f} s", _cut)
FURTHER = (
    Cell("host without ranks killed", _kill, loses_host=True, host=1),
    Cell("agent killed", _kill_agent),
    Cell("cache corrupted", around=_damaged_cache),
    Cell("store hidden from a host", around=_hidden_store),
    Cell("clock five minutes slow", around=_late_clock),
)
"""beside the two above"""
